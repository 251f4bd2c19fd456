"""From a config to the objects it names; whatever a config can have wrong is found here, before anything compiles."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from ssa_jax import functions, models, tasks
from ssa_jax.models.layers import PLACES
from ssa_jax.registry import no_such
from ssa_jax.training.mesh import make_mesh, resolve_mapping
from ssa_jax.training.optimizers import ARCH_OPTIMIZERS, WEIGHTS_OPTIMIZERS, direction
from ssa_jax.training.schedules import schedule
from ssa_jax.training.state import Replicas, make_replicas
from ssa_jax.training.step import Plan, example_batch

Config = ml_collections.ConfigDict
SEEDS_A_SEARCH = 1000  # search s has the seeds 1000 s, 1000 s + 1, …
SHARED_STREAM = 50_000_000  # the seeds of the shared held-out batches begin here


@dataclasses.dataclass(frozen=True)
class Functions:
    """Which function stands at which place of a model: the spec, not the learned numbers."""

    mlp: Any
    attention: Any
    attention_place: str = "none"
    sharing: str = "all_layers"

    def at(self, site: str) -> Any:
        """The function of a site in `arch`, such as mlp_all or pre_qkv_0; None for a score function's parameters."""
        if site.startswith("mlp"):
            return self.mlp
        return None if self.attention_place == "none" else self.attention


def task_of(config: Config) -> Any:
    """The task that `config.task` names."""
    return tasks.get(config.task.name, **_options(config.task))


def functions_of(config: Config) -> Functions:
    """The learnable functions that `config.functions` names."""
    chosen = config.functions
    mlp, attention = (functions.get(f.name, **_options(f)) for f in (chosen.mlp, chosen.attention))
    return Functions(mlp, attention, chosen.attention_place, chosen.sharing)


def model_of(config: Config, task: Any, parts: Functions, searched: bool = True) -> models.Model:
    """The model that `config.model` names, sized for the task, with these functions."""
    options = _options(config.model) | {
        "vocab_size": task.vocab_size,
        "outputs": task.outputs,
        "length": task.length,
        "answers": task.answers,
        "activation": parts.mlp,
        "sharing": parts.sharing,
    }
    if config.model.name != "mlp":
        options |= {"attention_place": parts.attention_place, "attention_function": parts.attention}
        if not searched:  # nobody learns a baseline's architecture for it
            options["score_in"] = "params"
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
        shared_seed=SHARED_STREAM + seed,
    )


def search_replicas(config: Config, seed: int) -> Replicas:
    """Stage 1's replicas: replica r of search s has seed 1000 s + r."""
    stage = config.stage1
    seeds = [SEEDS_A_SEARCH * seed + r for r in range(stage.replicas)]
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


VARIED = {"variants": ("task", "model", "functions", "stage1"), "targets": ("task", "model", "stage2", "baselines")}


def changed(config: Config, changes: Mapping[str, Any], where: str) -> Config:
    """The config with the nested `changes` of a variant or target; a field without effect is refused by its name."""
    new = config.copy_and_resolve_references()
    for root in changes:
        if root not in VARIED[where.split(".")[0]]:
            raise no_such(f"field in {where}", root, VARIED[where.split(".")[0]])
    with new.unlocked():
        _apply(new, changes, where)
    return new


def _apply(fields: Config, changes: Mapping[str, Any], where: str) -> None:
    for name, value in changes.items():
        checked_by_registry = "name" in fields and not where.endswith("optimizer")
        if name not in fields and not checked_by_registry:
            raise no_such(f"field in {where}", name, tuple(fields))
        if isinstance(value, Mapping | Config) and isinstance(fields.get(name), Config) and "name" not in value:
            _apply(fields[name], value, f"{where}.{name}")
        else:
            fields[name] = value


def check(config: Config) -> None:
    """ValueError naming the first field that cannot be run, its value, and what is allowed."""
    stage1, stage2 = config.stage1, config.stage2
    for field in ("checkpoint_every", "mesh.data", "mesh.model", "threshold"):
        _positive(field, _at(config, field))
    for where, stage in (("stage1", stage1), ("stage2", stage2)):
        for field in ("replicas", "steps", "batch_size", "accumulate", "eval_every"):
            _positive(f"{where}.{field}", stage[field])
        _multiple(f"{where}.steps", stage.steps, f"{where}.eval_every", stage.eval_every)
        _multiple(f"{where}.batch_size", stage.batch_size, f"{where}.accumulate", stage.accumulate)
        _multiple("checkpoint_every", config.checkpoint_every, f"{where}.eval_every", stage.eval_every)
    for rate in (stage1.learning_rate, *stage2.learning_rates):
        _positive("learning rate", rate)
    if config.threshold > 1:
        raise ValueError(f"threshold {config.threshold} is an accuracy: at most 1.")
    if not 0 <= stage1.stagger < 1:
        raise ValueError(f"stage1.stagger {stage1.stagger} must be in [0, 1).")
    if stage1.restart_every < 0:
        raise ValueError(f"stage1.restart_every {stage1.restart_every} must be 0 (never) or a number of steps.")
    if config.functions.attention_place not in PLACES:
        raise no_such("functions.attention_place", config.functions.attention_place, PLACES)
    _check_seeds(config)
    _check_names(config)
    if config.functions.polynomial_degree < 0:
        raise ValueError(f"functions.polynomial_degree {config.functions.polynomial_degree} must be 0 (none) or more.")
    resolve_mapping(config.replica_mapping)
    make_mesh(stage2.replicas, config.mesh.data, config.mesh.model)
    search_plan(config, 0)
    parts_of_sites = None
    for kind in ("variants", "targets"):
        for name, changes in {"": {}, **config[kind]}.items():
            new = changed(config, changes, f"{kind}.{name}")
            parts, task = functions_of(new), task_of(new)
            for place, function in (("mlp", parts.mlp), ("attention", parts.attention)):
                if function.learnable and not hasattr(function, "knots"):
                    raise ValueError(f"functions.{place}.name {function.name!r} cannot be searched; 'spline' can.")
            model = model_of(new, task, parts)
            arch = jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(task)))["arch"]  # noqa: B023
            sites = {site for site in arch if parts.at(site) is None}
            if parts_of_sites not in (None, sites):
                raise ValueError(f"{kind}.{name} changes which score functions are architecture; that must stay.")
            parts_of_sites = sites
            if config.experiment == "two_stage" and not arch:
                raise ValueError("There is nothing to learn: no function of the model is learnable. See functions.mlp.")
            judge_plan(new, False)


def _check_seeds(config: Config) -> None:
    """Seeds of searches and of fresh models are distinct, so that what is judged is fresh."""
    stage1, stage2 = config.stage1, config.stage2
    if config.experiment == "two_stage" and not stage1.seeds and not config.functions.load:
        raise ValueError("stage1.seeds is empty: nothing to learn from and functions.load names nothing.")
    for field, values in (("stage1.seeds", stage1.seeds), ("stage2.learning_rates", stage2.learning_rates)):
        if len({f"{value:g}" for value in values}) < len(values):
            raise ValueError(f"{field} {tuple(values)} holds a value twice.")
    if stage1.replicas > SEEDS_A_SEARCH:
        raise ValueError(
            f"stage1.replicas {stage1.replicas}: at most {SEEDS_A_SEARCH}, so that searches share no seed."
        )
    fresh = range(stage2.first_seed, stage2.first_seed + stage2.replicas)
    if fresh.start < 0 or fresh.stop > SHARED_STREAM:
        raise ValueError(f"stage2.first_seed {stage2.first_seed} must be in [0, {SHARED_STREAM - stage2.replicas}].")
    for seed in stage1.seeds:
        if not 0 <= seed < SHARED_STREAM // SEEDS_A_SEARCH:
            raise ValueError(f"stage1.seeds {seed} must be in [0, {SHARED_STREAM // SEEDS_A_SEARCH}).")
        used = range(SEEDS_A_SEARCH * seed, SEEDS_A_SEARCH * seed + stage1.replicas)
        if used.start < fresh.stop and fresh.start < used.stop:
            raise ValueError(
                f"stage2.first_seed {stage2.first_seed}: search {seed} used these seeds; choose fresh ones."
            )


def _check_names(config: Config) -> None:
    """Baselines are fixed activations; names become folders and rows, so none may stand for two things."""
    for name in config.baselines:
        if functions.get(name).learnable:
            raise ValueError(f"baselines {name!r} is learnable; a baseline is a fixed activation.")
    if config.experiment == "train" and not config.baselines:
        raise ValueError("baselines is empty: there is nothing to train.")
    if not config.targets:
        raise ValueError("targets is empty: stage 2 has nothing to judge on; the plain form is {'same': {}}.")
    for name in (*config.variants, *config.targets):
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"variant or target {name!r}: use letters, digits, '_', '.' and '-'.")
    for name in config.variants:
        if name in (*config.baselines, "loaded", "polynomial"):
            raise ValueError(f"variants {name!r} is taken; choose another name.")


def _at(config: Config, path: str) -> Any:
    for part in path.split("."):
        config = config[part]
    return config


def _positive(field: str, value: Any) -> None:
    if value is None or value <= 0:
        raise ValueError(f"{field} {value} must be positive.")


def _multiple(field: str, value: int, of: str, divisor: int) -> None:
    if value % divisor:
        raise ValueError(f"{field} {value} is not a multiple of {of} {divisor}.")
