"""From a config to the objects it names; whatever a config can have wrong is found here, before anything compiles."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from ssa_jax import functions, models, tasks
from ssa_jax.models.layers import PLACES
from ssa_jax.registry import no_such
from ssa_jax.training.optimizers import ARCH_OPTIMIZERS, WEIGHTS_OPTIMIZERS, direction
from ssa_jax.training.schedules import schedule
from ssa_jax.training.state import Replicas, make_replicas
from ssa_jax.training.step import Plan

Config = ml_collections.ConfigDict


@dataclasses.dataclass(frozen=True)
class Functions:
    """Which function stands at which place of a model: the spec, not the learned numbers."""

    mlp: Any
    attention: Any
    attention_place: str = "none"

    def at(self, site: str) -> Any:
        """The function of a site in `arch`, such as mlp_all, score_all, pre_qkv_0."""
        return self.mlp if site.startswith("mlp") else self.attention


def task_of(config: Config) -> Any:
    """The task that `config.task` names."""
    return tasks.get(config.task.name, **_options(config.task))


def functions_of(config: Config) -> Functions:
    """The learnable functions that `config.functions` names."""
    chosen = config.functions
    mlp, attention = (functions.get(f.name, **_options(f)) for f in (chosen.mlp, chosen.attention))
    return Functions(mlp, attention, chosen.attention_place)


def model_of(config: Config, task: Any, parts: Functions) -> models.Model:
    """The model that `config.model` names, sized for the task, with these functions."""
    options = _options(config.model) | {
        "vocab_size": task.vocab_size,
        "outputs": task.outputs,
        "length": task.length,
        "answers": task.answers,
        "activation": parts.mlp,
        "sharing": config.functions.sharing,
    }
    if config.model.name != "mlp":
        options |= {"attention_place": parts.attention_place, "attention_function": parts.attention}
    elif parts.attention_place != "none":
        raise ValueError(f"functions.attention_place {parts.attention_place!r}: model 'mlp' has no attention.")
    return models.get(config.model.name, **options)


def _options(fields: Config) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "name" and value is not None}


def _optimizer(fields: Config, steps: int, allowed: tuple[str, ...]) -> tuple[Any, Any]:
    step_along = direction(fields.name, fields.b1, fields.b2, fields.weight_decay, fields.clip, allowed)
    return step_along, schedule(fields.schedule, steps, fields.warmup, fields.floor, fields.cooldown)


def search_plan(config: Config, seed: int) -> Plan:
    """Stage 1's plan."""
    stage = config.stage1
    along, weights_schedule = _optimizer(stage.optimizer, stage.steps, WEIGHTS_OPTIMIZERS)
    arch_along, arch_schedule = _optimizer(stage.arch_optimizer, stage.steps, ARCH_OPTIMIZERS)
    if stage.mode == "frozen":
        raise no_such("stage1.mode", stage.mode, ("held_out", "joint"))
    return Plan(
        mode=stage.mode,
        batch_size=stage.batch_size,
        weights_direction=along,
        weights_schedule=weights_schedule,
        arch_direction=arch_along,
        arch_schedule=arch_schedule,
        arch_rate=stage.arch_learning_rate,
        smoothness=config.functions.smoothness,
        restart_every=stage.restart_every,
        accumulate=stage.accumulate,
        shared_seed=50_000_000 + seed,  # apart from every replica's seed
    )


def search_replicas(config: Config, seed: int) -> Replicas:
    """Stage 1's replicas: replica r of search s has seed 1000 s + r."""
    stage = config.stage1
    seeds = [1000 * seed + r for r in range(stage.replicas)]
    return make_replicas(seeds, stage.learning_rate, stage.steps, stage.stagger, stage.restart_every)


def judge_plan(config: Config, stacked_arch: bool) -> Plan:
    """Stage 2's plan: architecture frozen, whole train set."""
    stage = config.stage2
    along, weights_schedule = _optimizer(stage.optimizer, stage.steps, WEIGHTS_OPTIMIZERS)
    return Plan("frozen", stage.batch_size, along, weights_schedule, accumulate=stage.accumulate,
                stacked_arch=stacked_arch)  # fmt: skip


def judge_replicas(config: Config, sources: int) -> Replicas:
    """Stage 2's replicas: every source with every learning rate on every fresh seed, seeds fastest."""
    stage = config.stage2
    fresh = range(stage.first_seed, stage.first_seed + stage.replicas)
    grid = [(seed, rate, source) for source in range(sources) for rate in stage.learning_rates for seed in fresh]
    seeds, rates, indices = zip(*grid, strict=True)
    return make_replicas(seeds, rates, sources=indices)


def changed(config: Config, changes: Mapping[str, Any], where: str) -> Config:
    """The config with the nested `changes` of a variant or target; an unknown field is refused by its name."""
    new = config.copy_and_resolve_references()
    with new.unlocked():
        _apply(new, changes, where)
    return new


def _apply(fields: Config, changes: Mapping[str, Any], where: str) -> None:
    for name, value in changes.items():
        if name not in fields and "name" not in fields:  # options of a named part are its registry's to check
            raise no_such(f"field in {where}:", name, tuple(fields))
        if isinstance(value, Mapping | Config) and isinstance(fields.get(name), Config) and "name" not in value:
            _apply(fields[name], value, f"{where}.{name}")
        else:
            fields[name] = value


def check(config: Config) -> None:
    """ValueError naming the first field that cannot be run, its value, and what is allowed."""
    stage1, stage2 = config.stage1, config.stage2
    for where, stage in (("stage1", stage1), ("stage2", stage2)):
        for field in ("replicas", "steps", "batch_size", "accumulate", "eval_every"):
            _positive(f"{where}.{field}", stage[field])
        if stage.steps % stage.eval_every:
            raise ValueError(f"{where}.steps {stage.steps} is not a multiple of {where}.eval_every {stage.eval_every}.")
        if stage.batch_size % stage.accumulate:
            raise ValueError(
                f"{where}.batch_size {stage.batch_size} is not a multiple of accumulate {stage.accumulate}."
            )
        if config.checkpoint_every % stage.eval_every:
            raise ValueError(
                f"checkpoint_every {config.checkpoint_every} is no multiple of {where}.eval_every {stage.eval_every}."
            )
        for rate in stage.get("learning_rates", ()) or (stage.get("learning_rate"),):
            _positive(f"{where} learning rate", rate)
    _positive("mesh.data", config.mesh.data)
    _positive("mesh.model", config.mesh.model)
    if not 0 <= stage1.stagger < 1:
        raise ValueError(f"stage1.stagger {stage1.stagger} must be in [0, 1).")
    if stage1.restart_every < 0:
        raise ValueError(f"stage1.restart_every {stage1.restart_every} must be 0 (never) or a number of steps.")
    if not stage1.seeds and not config.functions.load:
        raise ValueError("stage1.seeds is empty: nothing to learn from and functions.load names nothing.")
    if config.functions.attention_place not in PLACES:
        raise no_such("functions.attention_place", config.functions.attention_place, PLACES)
    for name in config.baselines:
        functions.get(name)
    if not config.targets:
        raise ValueError("targets is empty: stage 2 has nothing to judge on; the plain form is {'same': {}}.")
    for name, changes in {**config.variants, **config.targets}.items():
        new = changed(config, changes, name)
        parts = functions_of(new)
        model_of(new, task_of(new), parts)
        search_plan(new, 0)
        judge_plan(new, False)


def _positive(field: str, value: Any) -> None:
    if value is None or value <= 0:
        raise ValueError(f"{field} {value} must be positive.")
