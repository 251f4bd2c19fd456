"""Kernels reach the compilers of hardware that is not here."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from ssa_jax import scores
from ssa_jax.attention import attend

CALLS = {
    "causal": {"causal": True},
    "everything": {"causal": True, "bias": (1, 4, 256, 256), "mask": (1, 1, 256, 256), "segments": True},
    "window": {"window": 100, "bias": (1, 1, 1, 256), "mask": (1, 4, 1, 256)},
    "bias of queries": {"bias": (1, 4, 256, 1)},
}


def traced(name, call, backend, length=256, dtype=jnp.bfloat16, sharding=None):
    """Forward and backward of `attend`, traced for shapes only."""
    score = scores.get(name)

    def shaped(*shape, dtype=dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    inputs = {name: shaped(1, length, heads, 64) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    inputs["params"] = jax.tree.map(lambda x: shaped(*x.shape, dtype=x.dtype), jax.eval_shape(lambda: score.init(4)))
    if "bias" in call:
        inputs["bias"] = shaped(*call["bias"], dtype=jnp.float32)
    data = {"mask": shaped(*call["mask"], dtype=bool)} if "mask" in call else {}
    if call.get("segments"):
        data["segment_ids"] = shaped(1, length, dtype=jnp.int32)
    static = {key: call[key] for key in ("causal", "window") if key in call}

    def run(inputs, data, cotangent):
        out, pullback = jax.vjp(lambda i: attend(**i, **data, **static, score=score, backend=backend), inputs)
        return out, pullback(cotangent)

    return jax.jit(run).trace(inputs, data, shaped(1, length, 4, 64))


LOG_WEIGHT = [name for name in scores.names() if scores.get(name).family == "log-weight" and name != "mixed"]


@pytest.mark.parametrize(
    "name, call", [("ssa", call) for call in CALLS] + [(name, "causal") for name in LOG_WEIGHT if name != "ssa"]
)
def test_gpu_kernels_lower_to_triton(name, call):
    text = traced(name, CALLS[call], "pallas_gpu").lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("triton") >= 3  # forward, and two for the gradients


H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84978434048 clock_rate_ghz: 1.98
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
"""
TARGETS = {
    "pallas_tpu": ("libtpu", {"platform": "tpu", "topology_name": "v5e:2x2"}),
    "pallas_gpu": (
        "jax_cuda13_plugin",
        {"platform": "cuda", "topology_name": "", "target_config": H100, "topology": "1x1x1"},
    ),
}
COMPILE = """
import jax, numpy, sys
from jax.experimental import topologies
sys.path.insert(0, {folder!r})
from test_compile import CALLS, LOG_WEIGHT, traced
topology = topologies.get_topology_desc(**{target!r})
mesh = jax.sharding.Mesh(numpy.array(topology.devices[:1]), ("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

def temporaries(name, call, length, dtype):
    program = traced(name, CALLS[call], {backend!r}, length, dtype, sharding).lower().compile()
    if length > 1024:
        assert f"{{length}},{{length}}" not in program.as_text(), "a length x length buffer"
    return program.memory_analysis().temp_size_in_bytes

for name in LOG_WEIGHT:
    temporaries(name, "causal", 256, "bfloat16")
for call in CALLS:
    temporaries("ssa", call, 256, "float32")
for length in (4096, 32768, 65536):
    # 4 heads of width 64: all inputs, outputs and their gradients in float32 are 9 KiB a token
    assert temporaries("ssa", "causal", length, "bfloat16") <= 9 * 1024 * length
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", TARGETS)
def test_kernels_compile_without_the_hardware_and_memory_is_linear(backend):
    module, target = TARGETS[backend]
    pytest.importorskip(module)
    # a fresh process: the compiler's library looks for hardware once, when first used
    environment = os.environ | {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    code = COMPILE.format(folder=os.path.dirname(__file__), target=target, backend=backend)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "compiled" in done.stdout, done.stderr[-3000:]
