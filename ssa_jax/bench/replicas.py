"""What many replicas in one program cost, and what a spline costs in a step.

    python -m ssa_jax.bench.replicas

Prints ratios of medians measured interleaved: a search step with M = 8 replicas (vmap, map; one step or many in a
dispatch) over a Python loop of 8 single jitted steps; and the demo Transformer's step with a frozen and a learning
spline over its step with GELU.
"""

import functools as ft
from typing import Any

import jax

from configs import modular_addition, parity
from ssa_jax import functions
from ssa_jax.bench import results
from ssa_jax.bench.results import Part
from ssa_jax.bench.timing import interleave, ratios
from ssa_jax.experiments import build
from ssa_jax.experiments.build import Config, Functions
from ssa_jax.report.table import Table
from ssa_jax.training.mesh import make_mesh
from ssa_jax.training.state import Replicas
from ssa_jax.training.step import Plan, init_state, make_step

STEPS = 25  # a dispatch


def runner(model: Any, task: Any, plan: Plan, replicas: Replicas, mapping: str, steps: int, devices: Any = None) -> Any:
    """A call that trains on by `steps` steps in one dispatch; on the first device, or spread over `devices`."""
    mesh = make_mesh(len(replicas.seed), devices=devices or jax.devices()[:1])
    state = init_state(model, task, plan, replicas, mesh, mapping, None)()
    step = make_step(model, task, plan, mesh, mapping)

    @ft.partial(jax.jit, donate_argnums=0)
    def dispatch(state: Any, replicas: Replicas) -> Any:
        return jax.lax.scan(lambda s, _: (step(s, replicas)[0], None), state, length=steps)[0]

    held = [state]

    def call() -> Any:
        held[0] = dispatch(held[0], replicas)
        return held[0].step

    return call


def replica_ratios(config: Config) -> dict[str, float]:
    """Time of a stage-1 step with M = 8 replicas over a Python loop of 8 single steps."""
    task, parts = build.task_of(config), build.functions_of(config)
    model, plan, replicas = (
        build.model_of(config, task, parts),
        build.search_plan(config, 0),
        build.search_replicas(config, 0),
    )
    one = lambda r: jax.tree.map(lambda x: x[r : r + 1], replicas)
    singles = [runner(model, task, plan, one(r), "vmap", 1) for r in range(len(replicas.seed))]

    def loop() -> Any:
        for _ in range(STEPS):
            done = [single() for single in singles]
        return done

    def repeated(call: Any) -> Any:
        return lambda: [call() for _ in range(STEPS)][-1]

    rivals = {"loop of single steps": loop}
    for mapping in ("vmap", "map"):
        rivals[f"{mapping}, one step a dispatch"] = repeated(runner(model, task, plan, replicas, mapping, 1))
        rivals[f"{mapping}, {STEPS} steps a dispatch"] = runner(model, task, plan, replicas, mapping, STEPS)
    return ratios(interleave(rivals), "loop of single steps")


def spline_ratios(config: Config) -> dict[str, float]:
    """Time of the demo Transformer's step with a spline over its step with GELU, one replica."""
    task, parts = build.task_of(config), build.functions_of(config)
    replicas = jax.tree.map(lambda x: x[:1], build.search_replicas(config, 0))
    frozen = build.judge_plan(config, False)
    with config.unlocked():
        joint = config.copy_and_resolve_references()
        joint.stage1.mode = "joint"
    learning = build.search_plan(joint, 0)
    gelu = build.model_of(config, task, Functions(functions.get("gelu"), functions.get("identity")))
    spline = build.model_of(config, task, parts)
    rivals = {
        "gelu": runner(gelu, task, frozen, replicas, "map", STEPS),
        "frozen spline": runner(spline, task, frozen, replicas, "map", STEPS),
        "learning spline": runner(spline, task, learning, replicas, "map", STEPS),
    }
    return ratios(interleave(rivals, rounds=31), "gelu")


def parts(config: Config, name: str) -> list[Part]:
    """Both tables of one config."""
    header = ("what", "time, ratio to the first")
    measured = {
        f"{name}: M = {config.stage1.replicas} replicas in one program": replica_ratios(config),
        f"{name}: a step with a spline": spline_ratios(config),
    }
    return [
        Part(title, Table(header, tuple((what, f"{ratio:.2f}") for what, ratio in found.items())))
        for title, found in measured.items()
    ]


def main() -> None:
    """Measures both demo configs, prints, and writes the section of the document of results."""
    chosen = results.arguments(__doc__)
    configs = {"parity": parity.get_config(), "modular addition": modular_addition.get_config()}
    if chosen.quick:
        configs = {name: _quick(config) for name, config in list(configs.items())[:1]}
    found = [part for name, config in configs.items() for part in parts(config, name)]
    for part in found:
        results.show(part)
    results.publish(chosen.results, "Replicas", found)


def _quick(config: Config) -> Config:
    config.stage1.replicas = 2
    return config


if __name__ == "__main__":
    main()
