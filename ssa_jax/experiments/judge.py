"""Stage 2: freeze functions and train fresh models with them, beside fixed activations on the same seeds."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssa_jax import functions
from ssa_jax.evaluation import statistics
from ssa_jax.experiments import build
from ssa_jax.experiments.build import Config, Functions
from ssa_jax.experiments.search import Source, learned_functions
from ssa_jax.experiments.session import Session, estimate
from ssa_jax.training.loop import Stage


@dataclasses.dataclass(frozen=True)
class Condition:
    """One condition on one target: what its chosen learning rate gave, seed by seed."""

    metrics: dict[str, list[float | None]]
    learning_rates: list[float]
    swept: dict[str, dict[str, Any]]
    steps: np.ndarray
    accuracy: np.ndarray
    validation: np.ndarray

    def standing(self) -> tuple[float, float]:
        """What ranks conditions: final validation accuracy to three digits, then over the whole run."""
        return standing(self.validation)


def standing(accuracy: np.ndarray) -> tuple[float, float]:
    """Mean final accuracy of [steps, seeds] to three digits, then its mean over all steps; failed seeds count 0."""
    filled = np.nan_to_num(accuracy)
    return float(filled[-1].mean().round(3)), float(filled.mean())


def judge(session: Session, config: Config, target: str, sources: list[Source]) -> dict[str, Condition]:
    """Every source and every baseline on `target`; sources with the same functions train in one program."""
    results: dict[str, Condition] = {}
    for parts, group in _by_functions(sources).items():
        arch = jax.tree.map(lambda *each: jnp.stack(each), *(source.arch for source in group))
        label = group[0].name if len(group) == 1 else f"{group[0].name}-and-{len(group) - 1}-more"
        results |= _train(session, config, f"{target}/{label}", parts, arch, [source.name for source in group])
    for name in config.baselines:
        fixed = Functions(functions.get(name), functions.get("identity"), sharing=config.functions.sharing)
        results |= _train(session, config, f"{target}/{name}", fixed, {}, [name])
    return results


def _by_functions(sources: list[Source]) -> dict[Functions, list[Source]]:
    groups: dict[Functions, list[Source]] = {}
    for source in sources:
        groups.setdefault(source.parts, []).append(source)
    return groups


def _train(
    session: Session, config: Config, label: str, parts: Functions, arch: Any, names: list[str]
) -> dict[str, Condition]:
    task, stage2 = build.task_of(config), config.stage2
    replicas = build.judge_replicas(config, len(names))
    shifted = tuple(split for split in task.splits if split in task.shifted)
    stage = Stage(
        name=f"stage2/{label}",
        model=build.model_of(config, task, parts, searched=bool(arch)),
        task=task,
        plan=build.judge_plan(config, stacked_arch=bool(arch)),
        replicas=replicas,
        steps=stage2.steps,
        eval_every=stage2.eval_every,
        eval_splits=("validation", "test", *shifted),
        checkpoint_every=config.checkpoint_every,
    )
    session.train(stage, arch, "stage2")
    shape = (len(names), len(stage2.learning_rates), stage2.replicas)
    return {name: _condition(session, stage, config, shape, i) for i, name in enumerate(names)}


def _condition(session: Session, stage: Stage, config: Config, shape: tuple[int, int, int], source: int) -> Condition:
    """The source's results at the learning rate that stands best on the validation split."""

    def of(split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        steps, values = session.history(stage.name, split, metric)
        return steps, values.reshape(len(steps), *shape)[:, source]

    steps, validation = of("validation", "accuracy")
    _, test = of("test", "accuracy")
    percent = f"{100 * config.threshold:g}"
    rates = list(config.stage2.learning_rates)
    chosen = max(range(len(rates)), key=lambda i: standing(validation[:, i]))
    metrics = {"test_accuracy": test[-1, chosen].tolist()}
    metrics[f"steps_to_{percent}"] = statistics.steps_to(steps, test[:, chosen], config.threshold)
    metrics["test_loss"] = of("test", "loss")[1][-1, chosen].tolist()
    if stage.task.answers > 1:
        metrics["test_exact_match"] = of("test", "exact_match")[1][-1, chosen].tolist()
    for split in stage.eval_splits[2:]:
        metrics[f"{split}_accuracy"] = of(split, "accuracy")[1][-1, chosen].tolist()
    swept = {
        f"{rate:g}": {
            "validation_accuracy": standing(validation[:, i])[0],
            "test_accuracy": estimate(test[-1, i].tolist()),
            f"steps_to_{percent}": estimate(statistics.steps_to(steps, test[:, i], config.threshold)),
        }
        for i, rate in enumerate(rates)
    }
    return Condition(metrics, [rates[chosen]], swept, steps, test[:, chosen], validation[:, chosen])


def polynomials(sources: list[Source], degree: int) -> tuple[list[Source], dict[str, float]]:
    """Each source with a polynomial of `degree` fitted to each of its splines, weighted by where inputs fell."""
    fitted, errors = [], {}
    for source in sources:
        arch, specs = dict(source.arch), {}
        for site, learned in learned_functions(source.parts, source.arch).items():
            function, leading = source.parts.at(site), learned["values"].shape[:-1]
            row = {"values": learned["values"].reshape(function.shape)}
            spec, params, error = functions.fit_polynomial(function, row, source.support.get(site), degree)
            params = jax.tree.map(lambda c: c.reshape(*leading, -1), params)  # noqa: B023
            arch[site] = {next(iter(source.arch[site])): params}
            specs[site.startswith("mlp")] = spec
            errors[f"{source.name}/{site}"] = float(error)
        parts = dataclasses.replace(
            source.parts,
            mlp=specs.get(True, source.parts.mlp),
            attention=specs.get(False, source.parts.attention),
        )
        fitted.append(Source(f"polynomial {source.name}", f"polynomial {source.group}", parts, arch, {}, {}))
    return fitted, errors
