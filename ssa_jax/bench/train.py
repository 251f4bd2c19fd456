"""One step of stage 1 with M = 8 models: ours against a plain torch loop over the models, on the same cores.

    python -m ssa_jax.bench.train            # about 5 minutes on 2 cores
    python -m ssa_jax.bench.train --quick

Ours makes its batches inside the step and runs 25 steps in one dispatch; torch draws its batches from a pool in
memory. Both compute the weights' gradients and the knots' gradient from held-out examples, clip, and apply AdamW and
Adam.
"""

from collections.abc import Callable
from typing import Any

import jax

from configs import default, parity
from ssa_jax.bench import results, torch_rivals, torch_training
from ssa_jax.bench.replicas import STEPS, runner
from ssa_jax.bench.results import Part
from ssa_jax.bench.timing import compare
from ssa_jax.experiments import build
from ssa_jax.experiments.build import Config
from ssa_jax.report.table import Table

Call = Callable[[], Any]
TORCH_STEPS = 3  # a call: torch gains nothing from many, and they make rounds long
CORES = "map, models spread over the cores"


def addition() -> Config:
    """3-digit addition with 2 layers, D 64."""
    config = parity.get_config()
    config.task = dict(name="addition", digits=3, train_size=5000)
    config.model = default.transformer(layers=2, width=64, hidden=128, norm="rmsnorm")
    return config


CONFIGS = {"parity, L 1, D 32": parity.get_config, "addition, L 2, D 64": addition}


def our_calls(config: Config, steps: int) -> dict[str, Call]:
    """Ways to map the step over the models, `steps` steps a call."""
    task, parts = build.task_of(config), build.functions_of(config)
    model, plan = build.model_of(config, task, parts), build.search_plan(config, 0)
    replicas = build.search_replicas(config, 0)
    calls = {mapping: runner(model, task, plan, replicas, mapping, steps) for mapping in ("map", "vmap")}
    if len(jax.devices()) > 1:
        calls[CORES] = runner(model, task, plan, replicas, "map", steps, jax.devices())
    return {f"ours, {name}": call for name, call in calls.items()}


def torch_calls(config: Config, steps: int) -> dict[str, Call]:
    """The torch loop, `steps` steps a call: on as many threads as XLA and on one, and reading as ours does.

    A plain program computes the last layer at all positions; ours only at those where the answer is read.
    """
    task, parts = build.task_of(config), build.functions_of(config)
    model = build.model_of(config, task, parts)
    pools = tuple(torch_training.examples(task, split) for split in ("weights", "architecture"))
    batch = task.batch(jax.random.key(0), "weights", 1)
    start = [model.init(jax.random.key(seed), batch) for seed in range(config.stage1.replicas)]
    grid = torch_rivals.tensor(parts.mlp.grid())

    def call(answers: int | None, threads: int) -> Call:
        values = torch_rivals.tensor(parts.mlp.init(jax.random.key(0))["values"], grad=True)
        weights = [torch_training.from_flax(variables["params"]) for variables in start]
        sizes = dict(layers=config.model.layers, heads=config.model.heads, answers=answers)
        step = torch_training.search_loop(weights, values, grid, pools, config.stage1.batch_size, **sizes)
        return lambda: torch_rivals.on_threads(threads, lambda: [step() for _ in range(steps)])

    return {
        "torch loop": call(None, torch_rivals.cores()),
        "torch loop, last layer where it is read": call(task.answers, torch_rivals.cores()),
        "torch loop, last layer where it is read, one thread": call(task.answers, 1),
    }


def step_times(name: str, config: Config, steps: int, rounds: int, most: int = 3) -> Part:
    """One table: a step of every rival, and the time of our best mapping in units of it."""
    calls, reason = our_calls(config, steps), torch_rivals.why_not()
    units = dict.fromkeys(calls, steps)
    trial = compare(calls, next(iter(calls)), max(1, rounds // 3), most=1)
    best = min(trial, key=lambda rival: trial[rival].seconds)
    if not reason:
        rivals = torch_calls(config, min(steps, TORCH_STEPS))
        calls, units = calls | rivals, units | dict.fromkeys(rivals, min(steps, TORCH_STEPS))
    timed = compare(calls, best, rounds, most, units)
    rows = [(rival, *one.inverse().cells()) for rival, one in timed.items()]
    stage = config.stage1
    notes = (
        f"M {stage.replicas}, B {stage.batch_size}, {steps} steps a dispatch of ours, {timed[best].rounds} rounds.",
    )
    notes += (f"torch: not measured ({reason}).",) if reason else ()
    return Part(f"A step of stage 1: {name}", Table(("rival", "step, ms", f"{best} / it"), tuple(rows)), notes)


def measure(quick: bool) -> list[Part]:
    """A table a config, each printed as soon as it is there."""
    parts = []
    for name, get_config in list(CONFIGS.items())[: 1 if quick else None]:
        config = get_config()
        if quick:
            config.stage1.update(dict(replicas=2, batch_size=8))
        parts.append(step_times(name, config, *(2, 1, 1) if quick else (STEPS, 9)))
        results.show(parts[-1])
    return parts


def main() -> None:
    """Measures, prints, and writes the section of the document of results."""
    chosen = results.arguments(__doc__)
    jax.config.update("jax_num_cpu_devices", torch_rivals.cores())  # a device a core, for the mapping that uses both
    results.publish(chosen.results, "Many models in one step", measure(chosen.quick))


if __name__ == "__main__":
    main()
