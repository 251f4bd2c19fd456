"""The kernels at lengths around their block sizes, and what is particular to them."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from test_parity import BOUND, Case, assert_close, outputs_and_gradients

from ssa_jax import scores
from ssa_jax.attention import attend

KERNELS = ("pallas_gpu", "pallas_tpu")
SMALL = {"batch": 1, "heads": 2, "groups": 1}
LENGTHS = (1, 17, 64, 65, 130)
# one of each length, each with another score function
FAST = [
    Case("temperature", queries=1, keys=17, **SMALL),
    Case("ssmax", queries=17, keys=17, causal=True, **SMALL),
    Case("softmax1", queries=64, keys=64, window=9, dtype=jnp.bfloat16, **SMALL),
    Case("softmax", queries=65, keys=130, bias=(1, 1, 65, 1), **SMALL),
    Case("ssa", queries=130, keys=65, causal=True, **SMALL),
]


@pytest.mark.parametrize("backend, case", itertools.product(KERNELS, FAST), ids=str)
def test_kernel_gives_the_reference(backend, case):
    assert_close(*outputs_and_gradients(case, backend), BOUND[case.dtype])


def grid():
    for name, queries, keys in itertools.product(("ssa", "softmax", "sigmoid", "spline"), LENGTHS, LENGTHS):
        yield Case(name, queries=queries, keys=keys, causal=True, **SMALL)
        yield Case(name, queries=queries, keys=keys, window=40, segments=True, dtype=jnp.bfloat16, **SMALL)
    for shape in itertools.product((1, 2), (1, 4), (1, 70), (1, 70)):
        yield Case(queries=70, keys=70, bias=shape, causal=True)
        yield Case("softmax", queries=70, keys=70, mask=shape, window=30)
    for width, dtype in itertools.product((16, 24, 64, 80, 128), BOUND):
        yield Case(queries=130, keys=130, width=width, causal=True, dtype=dtype, **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("backend, case", itertools.product(KERNELS, grid()), ids=str)
def test_kernel_gives_the_reference_everywhere(backend, case):
    assert_close(*outputs_and_gradients(case, backend), BOUND[case.dtype])


@pytest.mark.parametrize("backend", KERNELS)
def test_no_buffer_has_the_size_of_the_logits(backend):
    length, score = 1024, scores.get("ssa")
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    params = jax.eval_shape(lambda: score.init(2))

    def run(q, k, v, params):
        out, pullback = jax.vjp(
            lambda q, k, v, params: attend(q, k, v, score=score, params=params, causal=True, backend=backend),
            *(q, k, v, params),
        )
        return out, pullback(out)

    largest = max(
        variable.aval.size
        for equation in jax.make_jaxpr(run)(x, x, x, params).jaxpr.eqns
        for variable in equation.outvars
    )
    assert largest <= 16 * length * 2 * 8


@pytest.mark.parametrize("backend", KERNELS)
def test_kernels_refuse_float64(backend):
    with jax.enable_x64(True), pytest.raises(ValueError, match="blockwise"):
        q = jnp.zeros((1, 4, 2, 16), jnp.float64)
        attend(q, q, q, backend=backend)
