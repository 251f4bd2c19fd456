"""What a learned spline costs beside GELU: alone, and inside a Transformer's train step.

    python -m ssa_jax.bench.spline            # about 4 minutes on 2 cores
    python -m ssa_jax.bench.spline --quick

All forms run in turn, round after round; ratios are medians over rounds, with quartiles. Two naive forms show what
the spline's own gradient is worth: `jnp.interp`, and two gathers left to automatic differentiation.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from configs import default
from ssa_jax import functions, models
from ssa_jax.bench import results, torch_rivals
from ssa_jax.bench.replicas import runner
from ssa_jax.bench.results import Part
from ssa_jax.bench.timing import Timed, compare
from ssa_jax.experiments import build
from ssa_jax.functions import Spline
from ssa_jax.report.table import NOTHING, Table
from ssa_jax.training.state import make_replicas

Call = Callable[[], Any]
BASELINE = "gelu"
COLUMNS = ("forward", "+ dx", "+ dx + dknots")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Random tokens to be predicted from themselves: the cheapest batch of a given shape."""

    length: int
    vocab_size: int = 256
    name: ClassVar[str] = "tokens"

    def batch(self, key: Any, split: str, size: int) -> dict[str, Any]:
        """As every task's."""
        tokens = jax.random.randint(key, (size, self.length), 0, self.vocab_size)
        return {"inputs": tokens, "targets": tokens, "mask": jnp.ones(tokens.shape, bool)}


def two_gathers(spline: Spline, params: Any, x: Any) -> Any:
    """The spline as one writes it first; constant outside."""
    values, inside = params["values"], jnp.clip(x, spline.low, spline.high)
    position = (inside - spline.low) / spline.step
    index = jnp.clip(position.astype(jnp.int32), 0, spline.knots - 2)
    return values[index] + (position - index) * (values[index + 1] - values[index])


def forms(channels: int) -> dict[str, tuple[Callable[..., Any], Any]]:
    """name -> (function of (params, x), params); params {} where nothing is learned."""
    key = jax.random.key(0)
    chosen = {BASELINE: functions.get("gelu"), "gelu_tanh": functions.get("gelu_tanh")}
    chosen |= {f"spline, {knots} knots": Spline(knots=knots) for knots in (32, 64, 256)}
    chosen["spline, 64 knots, linear outside"] = Spline(knots=64, extrapolation="linear")
    chosen["spline, 64 knots a channel"] = Spline(knots=64, channels=channels)
    chosen["polynomial, degree 8"] = functions.get("polynomial", degree=8, low=-4.0, high=4.0)
    naive, grid = Spline(knots=64), np.linspace(-4, 4, 64, dtype=np.float32)
    by_hand = {
        "64 knots, two gathers, autodiff": ft.partial(two_gathers, naive),
        "64 knots, jnp.interp, autodiff": lambda params, x: jnp.interp(x, grid, params["values"]),
    }
    made = {name: (function.apply, function.init(key)) for name, function in chosen.items()}
    return made | {name: (apply, naive.init(key)) for name, apply in by_hand.items()}


def jax_calls(apply: Callable[..., Any], params: Any, x: np.ndarray, cotangent: np.ndarray) -> dict[str, Call]:
    """The columns that make sense for a form."""
    x, g = jnp.asarray(x), jnp.asarray(cotangent)

    def by_x(params: Any, x: Any, g: Any) -> Any:
        out, pullback = jax.vjp(ft.partial(apply, params), x)
        return out, pullback(g)

    def by_both(params: Any, x: Any, g: Any) -> Any:
        out, pullback = jax.vjp(apply, params, x)
        return out, pullback(g)

    wanted = {"forward": lambda params, x, g: apply(params, x), "+ dx": by_x} | (
        {"+ dx + dknots": by_both} if params else {}
    )
    return {column: ft.partial(jax.jit(f), params, x, g) for column, f in wanted.items()}


def torch_calls(x: np.ndarray, cotangent: np.ndarray) -> dict[str, dict[str, Call]]:
    """torch's GELU and the bucketised spline in the same columns."""
    import torch

    z, g = torch_rivals.tensor(x, grad=True), torch_rivals.tensor(cotangent)
    grid = torch.linspace(-4, 4, 64)
    values = torch.nn.functional.gelu(grid).requires_grad_()
    frozen = values.detach()
    spline, gelu = torch_rivals.spline, torch.nn.functional.gelu
    return {
        "torch gelu": {
            "forward": torch_rivals.forward_only(gelu, (z,)),
            "+ dx": torch_rivals.with_gradients(gelu, (z,), g),
        },
        "torch, 64 knots, bucketize": {
            "forward": torch_rivals.forward_only(spline, (z, frozen, grid)),
            "+ dx": torch_rivals.with_gradients(lambda z: spline(z, frozen, grid), (z,), g),
            "+ dx + dknots": torch_rivals.with_gradients(lambda z, v: spline(z, v, grid), (z, values), g),
        },
    }


def form_times(shape: tuple[int, int, int], rounds: int, most: int = 3) -> Part:
    """One table: every form over GELU's forward, or over GELU's forward and gradient."""
    x, cotangent = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    calls = {name: jax_calls(apply, params, 1.5 * x, cotangent) for name, (apply, params) in forms(shape[-1]).items()}
    reason = torch_rivals.why_not()
    calls |= {} if reason else torch_calls(1.5 * x, cotangent)
    columns: dict[str, dict[str, Timed]] = {}
    for column in COLUMNS:
        rivals = {name: own[column] for name, own in calls.items() if column in own}
        # learned numbers have no counterpart in GELU: its whole gradient is that by x
        rivals.setdefault(BASELINE, calls[BASELINE]["+ dx"])
        columns[column] = compare(rivals, BASELINE, rounds, most)
    rows = [
        (name, *(columns[column][name].cells()[1] if column in own else NOTHING for column in COLUMNS))
        for name, own in calls.items()
    ]
    ms = " and ".join(f"{columns[column][BASELINE].cells()[0]} ms" for column in COLUMNS[:2])
    notes = (f"Over gelu (the exact one), which takes {ms}; {rounds} rounds or more.",)
    notes += (f"torch's forms: not measured ({reason}).",) if reason else ()
    return Part(f"Functions of float32 {list(shape)}", Table(("form", *COLUMNS), tuple(rows)), notes)


@dataclasses.dataclass(frozen=True)
class Step:
    """The Transformer whose step is timed: L, D, F, H, T, B; and how many steps run in one dispatch."""

    layers: int = 2
    width: int = 256
    hidden: int = 1024
    heads: int = 4
    length: int = 128
    batch: int = 8
    steps: int = 2


def step_calls(size: Step, knots: Sequence[int] = (32, 64)) -> dict[str, Call]:
    """A call that trains for some steps, by the project's own train step, for each function at the MLP's place."""
    task, config = Tokens(size.length), default.get_config()
    config.stage1.update(dict(mode="joint", batch_size=size.batch, replicas=1))
    config.stage2.update(dict(batch_size=size.batch))
    frozen, joint = build.judge_plan(config, False), build.search_plan(config, 0)
    shape = {field: getattr(size, field) for field in ("layers", "width", "hidden", "heads", "length")}

    def call(function: Any, plan: Any) -> Call:
        model = models.get("decoder", vocab_size=task.vocab_size, activation=function, **shape)
        return runner(model, task, plan, make_replicas([0], 3e-3), "map", size.steps)

    calls = {BASELINE: call(functions.get("gelu"), frozen)}
    for K in knots:
        calls[f"frozen spline, {K} knots"] = call(Spline(knots=K), frozen)
        calls[f"learning spline, {K} knots"] = call(Spline(knots=K), joint)
    return calls


def step_times(size: Step, rounds: int, most: int = 3) -> Part:
    """One table: a whole train step (forward, backward, clip, AdamW) over the one with GELU."""
    calls = step_calls(size)
    timed = compare(calls, BASELINE, rounds, most, dict.fromkeys(calls, size.steps))
    rows = tuple((name, *one.cells()) for name, one in timed.items())
    notes = (
        "Learning: weights and knots from the same batch; one spline for all layers. "
        f"{size.steps} steps in one dispatch, {timed[BASELINE].rounds} rounds.",
    )
    title = (
        f"Train step of a Transformer: L {size.layers}, D {size.width}, F {size.hidden}, H {size.heads}, "
        f"T {size.length}, B {size.batch}"
    )
    return Part(title, Table(("MLP's function", "step, ms", "over gelu"), rows), notes)


def measure(quick: bool) -> list[Part]:
    """Both tables, each printed as soon as it is there."""
    parts = []
    if quick:
        todo = (
            ft.partial(form_times, (2, 16, 32), 1, most=1),
            ft.partial(step_times, Step(1, 16, 32, 2, 8, 2, 1), 1, most=1),
        )
    else:
        todo = (ft.partial(form_times, (8, 256, 1024), 21), ft.partial(step_times, Step(), 15))
    for part in todo:
        parts.append(part())
        results.show(parts[-1])
    return parts


def main() -> None:
    """Measures, prints, and writes the section of the document of results."""
    chosen = results.arguments(__doc__)
    results.publish(chosen.results, "Splines", measure(chosen.quick))


if __name__ == "__main__":
    main()
