"""The GPU kernels on a GPU: right to rounding, and how fast beside cuDNN's softmax.

    python -m ssa_jax.bench.gpu            # one GPU, about 5 minutes, most of it compilation
    python -m ssa_jax.bench.gpu --quick    # anywhere, kernels interpreted: whether it runs

Every case is held against dense attention in float64: output and all gradients, 2e-5 of the largest entry in float32,
2e-2 in bfloat16; the command fails where one misses. Times are medians of interleaved rounds, causal, bfloat16;
`+ backward` is one call that returns the output and the gradients of q, k, v and the score function's parameters.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssa_jax import attention, scores
from ssa_jax.bench import memory, results
from ssa_jax.bench.results import Part
from ssa_jax.bench.timing import compare
from ssa_jax.report.table import Table

BACKEND = "pallas_gpu"
BOUND = {"float32": 2e-5, "bfloat16": 2e-2}
CUDNN = "cuDNN softmax"
REPEATS = 10
"""Calls a measurement."""
ROUNDS = 15
LOG_WEIGHT = tuple(name for name in scores.names() if scores.get(name).family == "log-weight" and name != "mixed")
PATTERNS = ("causal", "window", "segments", "mask", "bias", "key bias")


@dataclasses.dataclass(frozen=True)
class Case:
    """What is compared with the reference."""

    score: str
    pattern: str = "causal"
    length: int = 257
    width: int = 64
    dtype: str = "float32"

    def __str__(self):
        return f"{self.score}, {self.pattern}, T {self.length}, E {self.width}"


CASES = (
    *(Case(name, dtype=dtype) for name in LOG_WEIGHT for dtype in BOUND),
    *(Case("ssa", pattern) for pattern in PATTERNS[1:]),
    *(Case("ssa", length=length) for length in (1, 17, 128)),
    *(Case("ssa", width=width, dtype=dtype) for width in (16, 24, 128) for dtype in BOUND),
)
QUICK_CASES = (Case("ssa", "bias", 17, 16), Case("softmax", "causal", 17, 16, "bfloat16"))


def inputs_of(case: Case) -> tuple[dict[str, Any], dict[str, Any], jax.Array]:
    """What `attend` differentiates, what else it is given, and the cotangent; 4 query heads share 2 of keys."""
    rng = np.random.default_rng(0)
    length, width = case.length, case.width

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), case.dtype)

    inputs = {name: normal(2, length, heads, width) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    inputs["params"] = scores.get(case.score).init(4)
    if "bias" in case.pattern:
        inputs["bias"] = normal(1, 4, 1 if case.pattern == "key bias" else length, length)
    rest: dict[str, Any] = {"causal": case.pattern == "causal", "window": 50 if case.pattern == "window" else None}
    if case.pattern == "mask":
        rest["mask"] = jnp.asarray(rng.random((2, 1, length, length)) < 0.6)
    if case.pattern == "segments":
        rest["segment_ids"] = jnp.asarray(np.sort(rng.integers(0, 4, (2, length))), jnp.int32)
    return inputs, rest, normal(2, length, 4, width)


def error(case: Case) -> float:
    """The largest difference from the reference, of output and gradients, over each one's largest entry."""
    inputs, rest, cotangent = inputs_of(case)

    def run(inputs: Any, cotangent: Any, backend: str) -> Any:
        out, pullback = jax.vjp(lambda i: attention.attend(**i, **rest, score=case.score, backend=backend), inputs)
        return out, pullback(cotangent)[0]

    ours = jax.jit(functools.partial(run, backend=BACKEND))(inputs, cotangent)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), (inputs, cotangent))
        truth = jax.jit(functools.partial(run, backend="dense"))(*wide)
    pairs = zip(*(map(np.asarray, jax.tree.leaves(tree)) for tree in (ours, truth)), strict=True)
    # a gradient that vanishes (one visible key) is held against the size of its terms
    errors = [np.abs(a.astype(np.float64) - b).max() / max(np.abs(b).max(), 0.05) for a, b in pairs]
    return float(np.max(errors))


def parity(cases: Sequence[Case]) -> tuple[Part, bool]:
    """One table: each case's error; and whether all are within their bounds."""
    rows, right = [], True
    for case in cases:
        found = error(case)
        within = found <= BOUND[case.dtype]  # a NaN is not
        right &= within
        rows.append((str(case), case.dtype, f"{found:.1e}", "yes" if within else "NO"))
    header = ("case", "numbers", "largest error", "within bound")
    return Part("Against dense float64, output and gradients", Table(header, tuple(rows))), right


@dataclasses.dataclass(frozen=True)
class Size:
    """[B, T, H, E]."""

    batch: int = 4
    length: int = 4096
    heads: int = 16
    width: int = 64

    def flops(self) -> float:
        """Of the products of a causal forward pass: two of T x T x E a head, half of each hidden."""
        return 2 * self.batch * self.heads * self.length**2 * self.width


USUAL, WIDE, QUICK = Size(), Size(batch=2, width=128), Size(1, 32, 2, 16)


def _ours(name: str, backend: str) -> Callable[..., Any]:
    return lambda q, k, v, params: attention.attend(q, k, v, score=name, params=params, causal=True, backend=backend)


def _softmax(implementation: str) -> Callable[..., Any]:
    return lambda q, k, v, params: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)


def _repeated(run: Callable[..., Any], given: tuple) -> Callable[[], Any]:
    # queued one behind the other, so that the device never waits for Python
    return lambda: [run(*given) for _ in range(REPEATS)]


RIVALS = {
    CUDNN: ("softmax", _softmax("cudnn")),
    "XLA softmax": ("softmax", _softmax("xla")),
    "blockwise ssa": ("ssa", _ours("ssa", "blockwise")),
} | {f"kernel {name}": (name, _ours(name, BACKEND)) for name in LOG_WEIGHT}
MAIN = (CUDNN, "kernel softmax", "kernel ssa")


def _with_gradients(attend: Callable[..., Any]) -> Callable[..., Any]:
    def both(q: Any, k: Any, v: Any, params: Any) -> Any:
        out, pullback = jax.vjp(attend, q, k, v, params)
        # the output stands in for a cotangent: any array of its shape costs the same
        return out, pullback(out)

    return both


def times(size: Size, rivals: Sequence[str], rounds: int) -> Part:
    """One table: milliseconds, over cuDNN's softmax, TFLOP/s of the forward pass, temporaries of both passes."""
    rng = np.random.default_rng(0)
    shape = (3, size.batch, size.length, size.heads, size.width)
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in rng.standard_normal(shape, dtype=np.float32)]
    forward, both, temporaries, notes = {}, {}, {}, []
    for name in rivals:
        score, attend = RIVALS[name]
        given = (*inputs, scores.get(score).init(size.heads))
        try:
            runs = [jax.jit(f).lower(*given).compile() for f in (attend, _with_gradients(attend))]
            jax.block_until_ready([run(*given) for run in runs])
        except Exception as refusal:  # a library that is absent or too old must not cost the other numbers
            notes.append(f"{name}: {str(refusal).strip().splitlines()[0][:160]}.")
            continue
        forward[name], both[name] = (_repeated(run, given) for run in runs)
        temporaries[name] = runs[1].memory_analysis().temp_size_in_bytes / memory.MIB
    baseline = CUDNN if CUDNN in forward else next(iter(forward))
    columns = [
        {
            name: dataclasses.replace(timed, seconds=timed.seconds / REPEATS)
            for name, timed in compare(calls, baseline, rounds, most=1).items()
        }
        for calls in (forward, both)
    ]
    header = (
        "what",
        "forward, ms",
        f"over {baseline}",
        "TFLOP/s",
        "+ backward, ms",
        f"over {baseline}",
        "temporaries, MiB",
    )
    rows = [
        (
            name,
            *columns[0][name].cells(),
            f"{size.flops() / columns[0][name].seconds / 1e12:.3g}",
            *columns[1][name].cells(),
            f"{temporaries[name]:,.0f}",
        )
        for name in forward
    ]
    title = f"B {size.batch}, T {size.length:,}, H {size.heads}, E {size.width}, causal, bfloat16"
    return Part(title, Table(header, tuple(rows)), tuple(notes))


def main() -> None:
    """Checks, measures, prints, writes the section of the document of results; fails if a case missed its bound."""
    chosen = results.arguments(__doc__)
    if not chosen.quick and jax.default_backend() != "gpu":
        raise SystemExit(f"jax sees no GPU but {jax.default_backend()!r}: install ssa_jax[cuda], or use --quick.")
    checked, right = parity(QUICK_CASES if chosen.quick else CASES)
    parts = [checked]
    results.show(checked)
    sizes = (
        ((QUICK, ("XLA softmax", "kernel ssa"), 1),)
        if chosen.quick
        else ((WIDE, MAIN, ROUNDS), (USUAL, RIVALS, ROUNDS))
    )
    for size, rivals, rounds in sizes:
        parts.append(times(size, rivals, rounds))
        results.show(parts[-1])
    results.publish(chosen.results, "GPU kernels", parts)
    if not right:
        raise SystemExit("Some cases missed their bound.")


if __name__ == "__main__":
    main()
