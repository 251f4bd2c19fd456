"""Causal attention against its rivals: time, and memory.

    python -m ssa_jax.bench.attention            # 15 to 25 minutes on 2 cores
    python -m ssa_jax.bench.attention --quick

All rivals run in turn, round after round, on the same cores; ratios are medians over rounds, with quartiles. Every
rival gets its own layout, contiguous. `+ backward` is one call that returns the output and the gradients of q, k, v
and, for SSA, of b and n of every head.
"""

import dataclasses
import functools as ft
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssa_jax import attention, scores
from ssa_jax.attention.masks import Pattern
from ssa_jax.bench import memory, results, torch_rivals
from ssa_jax.bench.results import Part
from ssa_jax.bench.timing import Timed, compare
from ssa_jax.report.table import NOTHING, Table

Call = Callable[[], Any]
SSA = scores.get("ssa")
OURS = "blockwise ssa"


@dataclasses.dataclass(frozen=True)
class Size:
    """[B, T, H, E], how many rounds it is given, and how many times as many where ratios swing."""

    length: int
    batch: int = 1
    heads: int = 8
    width: int = 64
    rounds: int = 9
    most: int = 3


SIZES = (Size(256, batch=8, rounds=21), Size(1024, batch=2, rounds=11), Size(4096, rounds=5, most=2))
QUICK = (Size(48, heads=2, width=8, rounds=1, most=1),)


def materialised_softmax(q: Any, k: Any, v: Any, params: Any) -> Any:
    """What one writes by hand in JAX."""
    logits = jnp.einsum("bthe,bshe->bhts", q, k) / q.shape[-1] ** 0.5
    visible = jnp.tri(logits.shape[-1], dtype=bool)
    return jnp.einsum("bhts,bshf->bthf", jax.nn.softmax(jnp.where(visible, logits, -jnp.inf), axis=-1), v)


def _ours(score: Any, backend: str) -> Callable[..., Any]:
    return lambda q, k, v, params: attention.attend(
        q, k, v, score=score, params=params, causal=True, backend=backend
    )  # fmt: skip


# (q, k, v, params of SSA or {}) -> out
JAX = {
    OURS: (_ours(SSA, "blockwise"), True),
    "blockwise softmax": (_ours("softmax", "blockwise"), False),
    "dense ssa": (_ours(SSA, "dense"), True),
    "materialised jax softmax": (materialised_softmax, False),
    "jax.nn.dot_product_attention": (
        lambda q, k, v, params: jax.nn.dot_product_attention(q, k, v, is_causal=True),
        False,
    ),
}
TORCH = {
    "torch SDPA (fused softmax)": (lambda length: torch_rivals.fused_softmax, False),
    "torch FlexAttention, SSA, compiled": (torch_rivals.flex_ssa, True),
    "torch eager SSA, power form": (lambda length: torch_rivals.eager_ssa_power, True),
    "torch eager SSA, log form": (lambda length: torch_rivals.eager_ssa_log, True),
}


def arrays(size: Size) -> tuple[np.ndarray, ...]:
    """q, k, v and the cotangent of the output, standard normal, float32 [B, T, H, E]."""
    rng = np.random.default_rng(0)
    shape = (4, size.batch, size.length, size.heads, size.width)
    return tuple(rng.standard_normal(shape, dtype=np.float32))


def jax_calls(name: str, size: Size, score: Any = SSA, function: Any = None) -> tuple[Call, Call]:
    """Forward, and forward with gradients, of a JAX rival; or of any `function` with the parameters of `score`."""
    attend, learns = (function, True) if function else JAX[name]
    *inputs, cotangent = (jnp.asarray(x) for x in arrays(size))
    params = score.init(size.heads) if learns else {}
    forward, both = jax.jit(attend), jax.jit(_with_gradients(attend))
    return lambda: forward(*inputs, params), lambda: both(cotangent, *inputs, params)


def _with_gradients(attend: Callable[..., Any]) -> Callable[..., Any]:
    def both(cotangent: Any, *inputs: Any) -> Any:
        out, pullback = jax.vjp(attend, *inputs)
        return out, pullback(cotangent)

    return both


def torch_calls(name: str, size: Size) -> tuple[Call, Call]:
    """Forward, and forward with gradients, of a torch rival, [B, H, T, E]."""
    build, learns = TORCH[name]
    *inputs, cotangent = (torch_rivals.tensor(x.swapaxes(1, 2).copy(), grad=True) for x in arrays(size))
    params = SSA.init(size.heads)
    inputs += [torch_rivals.tensor(params[p], grad=True) for p in ("b", "n")] if learns else []
    attend = build(size.length)
    both = torch_rivals.with_gradients(attend, tuple(inputs), cotangent.detach())
    return torch_rivals.forward_only(attend, tuple(inputs)), both


def refusals() -> tuple[dict[str, str], dict[str, str]]:
    """Why which torch rivals cannot run forward, and backward, here: found by trying them small."""
    if reason := torch_rivals.why_not():
        return dict.fromkeys(TORCH, reason), dict.fromkeys(TORCH, reason)
    forward, backward = {}, {}
    for name in TORCH:
        for call, refused in zip(torch_calls(name, Size(256, heads=2)), (forward, backward), strict=True):
            try:
                call()
            except Exception as error:  # compilers fail in many ways; the reason goes into the table's notes
                refused[name] = _first_cause(error)
    return forward, backward


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0][:160]


def _reasons(refused: dict[str, str], what: str) -> list[str]:
    """A sentence a reason, for all that it keeps from running."""
    return [
        f"No {what} of {', '.join(name for name, why in refused.items() if why == reason)}: {reason.rstrip('.')}."
        for reason in dict.fromkeys(refused.values())
    ]


def times(size: Size, refused: tuple[dict[str, str], dict[str, str]]) -> Part:
    """One table: how long each rival takes at this size, and how long our blockwise SSA in units of that."""
    calls = {name: jax_calls(name, size) for name in JAX}
    calls |= {name: torch_calls(name, size) for name in TORCH if not (name in refused[0] and name in refused[1])}
    columns = [
        compare({name: pair[i] for name, pair in calls.items() if name not in refused[i]}, OURS, size.rounds, size.most)
        for i in (0, 1)
    ]
    header = ("rival", "forward, ms", "blockwise ssa / it", "+ backward, ms", "blockwise ssa / it")
    rows = [(name, *(cell for column in columns for cell in _cells(column.get(name)))) for name in calls]
    rounds = " and ".join(str(column[OURS].rounds) for column in columns)
    title = f"T {size.length:,}, B {size.batch}, H {size.heads}, E {size.width}, causal, float32"
    notes = [f"{rounds} rounds; ratios are medians over rounds [quartiles], below 1 where blockwise SSA is faster."]
    notes += _reasons(refused[0], "forward")
    notes += _reasons({name: why for name, why in refused[1].items() if name not in refused[0]}, "backward")
    return Part(title, Table(header, tuple(rows)), tuple(notes))


def _cells(timed: Timed | None) -> tuple[str, str]:
    return (NOTHING, NOTHING) if timed is None else timed.inverse().cells()


def score_times(size: Size) -> Part:
    """One table: every score function, dense and by the backend that 'auto' picks, over dense softmax."""
    members = {name: scores.get(name) for name in scores.names()}
    chosen = {
        name: attention.choose_backend(score, size.length, size.length, Pattern(causal=True)).backend
        for name, score in members.items()
    }
    calls = {}
    for name, score in members.items():
        for backend in ("dense", "auto"):
            calls[name, backend] = jax_calls(name, size, score, _ours(score, backend))[1]
    timed = compare(calls, ("softmax", "dense"), size.rounds, size.most)
    header = ("score function", "family", "dense", "auto", "auto picks")
    rows = [
        (name, score.family, timed[name, "dense"].cells()[1], timed[name, "auto"].cells()[1], chosen[name])
        for name, score in members.items()
    ]
    seconds = timed["softmax", "dense"].seconds
    notes = (f"Over dense softmax ({1e3 * seconds:.3g} ms); forward and all gradients, {size.rounds} rounds or more.",)
    return Part(f"Score functions, T {size.length:,}, B {size.batch}, causal", Table(header, tuple(rows)), notes)


def simplex_times(rows: int, keys: int, rounds: int, most: int = 3) -> Part:
    """One table: sparsemax and entmax on rows of logits, against the package `entmax`; forward and gradient."""
    logits, cotangent = np.random.default_rng(0).standard_normal((2, 1, rows, keys), dtype=np.float32)
    theirs, note = _package_calls(3 * logits, cotangent)
    z, g = jnp.asarray(3 * logits), jnp.asarray(cotangent)
    cells = []
    for family, options in (("sparsemax", {}), ("entmax", {"alpha": 1.5})):
        calls = {}
        for by in ("bisection", "sort"):
            score = scores.get(family, by=by, **options)
            both = jax.jit(_with_gradients(lambda z, score=score: score.weights(z)))
            calls[f"{family}, ours, {by}"] = ft.partial(both, g, z)
        calls |= {name: call for name, call in theirs.items() if name.startswith(family)}
        timed = compare(calls, f"{family}, ours, bisection", rounds, most)
        cells += [(name, *timed[name].inverse().cells()) for name in calls]
    header = ("what", "ms", "ours by bisection / it")
    title = f"Sparsemax and entmax-1.5 on {rows:,} rows of {keys:,} logits, forward and gradient"
    return Part(title, Table(header, tuple(cells)), note)


def _package_calls(logits: np.ndarray, cotangent: np.ndarray) -> tuple[dict[str, Call], tuple[str, ...]]:
    reason = torch_rivals.why_not()
    if not reason and importlib.util.find_spec("entmax") is None:
        reason = "the package entmax is not installed (pip install -e '.[bench]')"
    if reason:
        return {}, (f"Package entmax: not measured ({reason}).",)
    import entmax

    functions = {
        "sparsemax, package, sort": ft.partial(entmax.sparsemax, dim=-1),
        "sparsemax, package, bisection": ft.partial(entmax.entmax_bisect, alpha=2.0, dim=-1),
        "entmax, package, sort": ft.partial(entmax.entmax15, dim=-1),
        "entmax, package, bisection": ft.partial(entmax.entmax_bisect, alpha=1.5, dim=-1),
    }
    z, g = torch_rivals.tensor(logits, grad=True), torch_rivals.tensor(cotangent)
    return {name: torch_rivals.with_gradients(f, (z,), g) for name, f in functions.items()}, ()


def temporaries(short: int, long: int, heads: int = 8, width: int = 64) -> Part:
    """One table: what XLA plans for temporary buffers, forward and backward, batch 1."""
    rows = []
    for name, (attend, learns) in JAX.items():
        params = jax.eval_shape(lambda: SSA.init(heads)) if learns else {}
        sizes = []
        for length in (short, long):
            x = jax.ShapeDtypeStruct((1, length, heads, width), jnp.float32)
            sizes.append(memory.temporaries(_with_gradients(attend), x, x, x, x, params))
        rows.append((name, *(f"{size:,.1f}" for size in sizes), f"{sizes[1] / max(sizes[0], 1e-9):.2f}"))
    header = ("rival", f"T {short:,}, MiB", f"T {long:,}, MiB", "growth")
    title = f"Temporaries of forward + backward by `memory_analysis`, B 1, H {heads}, E {width}"
    return Part(title, Table(header, tuple(rows)), (f"Linear in T is a growth of {long / short:.2g}.",))


def run_once(name: str, heads: int, width: int, length: int) -> Any:
    """Forward and backward of one rival once, batch 1."""
    if name in TORCH:
        torch_rivals.why_not()
    calls = torch_calls if name in TORCH else jax_calls
    return calls(name, Size(length, heads=heads, width=width))[1]()


def peaks(names: Sequence[str], length: int, heads: int = 8, width: int = 64) -> Part:
    """One table: the most memory that a process held which ran one rival forward and backward once."""
    rows, small = [], min(128, length // 2)
    for name in names:
        base, more = memory.process_peak(ft.partial(run_once, name, heads, width), small, length)
        rows.append((name, f"{base:,.0f}", f"{more:,.0f}"))
    header = ("rival", f"libraries and T {small}, MiB", f"T {length:,} adds, MiB")
    title = f"Peak memory of a process of its own, forward + backward, B 1, H {heads}, E {width}"
    inputs = 4 * 2 * 4 * length * heads * width / memory.MIB
    notes = (f"Of what is added, inputs, output and gradients are about {inputs:.0f} MiB.",)
    return Part(title, Table(header, tuple(rows)), notes)


def measure(quick: bool) -> list[Part]:
    """All tables, each printed as soon as it is there."""
    parts, refused = [], refusals()
    small = {"heads": 2, "width": 8} if quick else {}

    def done(part: Part) -> None:
        parts.append(part)
        results.show(part)

    for size in QUICK if quick else SIZES:
        done(times(size, refused))
    done(score_times(QUICK[0] if quick else Size(1024, rounds=7)))
    done(simplex_times(*(16, 32, 1, 1) if quick else (8192, 1024, 7)))
    done(temporaries(*(256, 1024) if quick else (2048, 8192), **small))
    names = [OURS] if quick else [name for name in (*JAX, *TORCH) if name not in refused[1]]
    done(peaks(names, 256 if quick else 4096, **small))
    return parts


def main() -> None:
    """Measures, prints, and writes the section of the document of results."""
    chosen = results.arguments(__doc__)
    results.publish(chosen.results, "Attention", measure(chosen.quick))


if __name__ == "__main__":
    main()
