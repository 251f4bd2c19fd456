"""The main job: learn functions on held-out data (stage 1), freeze them, judge them in fresh models (stage 2)."""

from typing import Any

import numpy as np

from ssa_jax.evaluation import statistics
from ssa_jax.experiments import build, judge
from ssa_jax.experiments.build import Config
from ssa_jax.experiments.judge import Condition
from ssa_jax.experiments.search import Source, load, search
from ssa_jax.experiments.session import Session, estimate
from ssa_jax.report import plots, table
from ssa_jax.report.html import write_report
from ssa_jax.report.run_folder import environment, write_atomic


def two_stage(config: Config, session: Session) -> dict[str, Any]:
    """Stage 1 for every variant and seed (or functions loaded), then stage 2 on every target."""
    return compare(config, session, _sources(session, config))


def train(config: Config, session: Session) -> dict[str, Any]:
    """Ordinary training, stage 2 alone: models with the fixed activations of `baselines`."""
    return compare(config, session, [])


def compare(config: Config, session: Session, sources: list[Source]) -> dict[str, Any]:
    """Stage 2 of sources and baselines on every target; writes and returns the summary."""
    fitted, polynomial_errors = [], {}
    if config.functions.polynomial_degree:
        fitted, polynomial_errors = judge.polynomials(sources, config.functions.polynomial_degree)
    sources = [*sources, *fitted]
    results, details, verdicts = {}, {}, []
    for target, changes in sorted(config.targets.items(), key=lambda item: item[0] != "same"):
        on_target = build.changed(config, changes, f"targets.{target}")
        conditions = judge.judge(session, on_target, target, sources)
        conditions = _pooled(conditions, {source.name: source.group for source in sources})
        prefix = "" if target == "same" else f"{target}: "
        results |= {f"{prefix}{name}": _estimates(c) for name, c in conditions.items()}
        trivial = build.task_of(on_target).trivial()
        results |= {f"{prefix}{name} (trivial)": {"test_accuracy": estimate([v])} for name, v in trivial.items()}
        details[target] = {
            name: {"learning_rates": c.learning_rates, "swept": c.swept} for name, c in conditions.items()
        }
        verdicts.append(prefix + _verdict(conditions, on_target.baselines))
        accuracies = {name: (c.steps, c.accuracy) for name, c in conditions.items()}
        plots.learning_curves(
            session.folder.path / "plots" / f"accuracy_{target}.png", accuracies, "test accuracy", config.threshold
        )
    summary = {
        "experiment": config.experiment,
        "verdict": " ".join(verdicts),
        "results": results,
        "cost": session.costs,
        "environment": environment(),
        "functions": {source.name: source.facts for source in sources if source.facts},
        "polynomial_errors": polynomial_errors,
        "sweeps": details,
    }
    session.folder.write_json("summary.json", summary)
    write_atomic(session.folder.path / "results.md", table.comparison(summary).markdown())
    write_report(session.folder)
    return summary


def _sources(session: Session, config: Config) -> list[Source]:
    if config.functions.load:
        return [load(config)]
    found = []
    for variant, changes in (config.variants or {"learned": {}}).items():
        varied = build.changed(config, changes, f"variants.{variant}")
        cost = "stage1" if variant == "learned" else f"stage1 {variant}"
        found += [search(session, varied, variant, seed, cost) for seed in varied.stage1.seeds]
    return found


def _pooled(conditions: dict[str, Condition], group_of: dict[str, str]) -> dict[str, Condition]:
    """Conditions with the searches that differ by their seed only put together."""
    groups: dict[str, list[Condition]] = {}
    for name, condition in conditions.items():
        groups.setdefault(group_of.get(name, name), []).append(condition)
    return {name: group[0] if len(group) == 1 else _pool(group) for name, group in groups.items()}


def _pool(group: list[Condition]) -> Condition:
    return Condition(
        metrics={metric: [value for c in group for value in c.metrics[metric]] for metric in group[0].metrics},
        learning_rates=[rate for c in group for rate in c.learning_rates],
        swept={f"search {i}, {rate}": v for i, c in enumerate(group) for rate, v in c.swept.items()},
        steps=group[0].steps,
        accuracy=np.concatenate([c.accuracy for c in group], axis=1),
        validation=np.concatenate([c.validation for c in group], axis=1),
    )


def _estimates(condition: Condition) -> dict[str, Any]:
    """Estimates of all metrics; searches share their fresh seeds, so the interval is over the seeds' means."""
    found = {}
    for metric, values in condition.metrics.items():
        per_seed = np.array(values, np.float64).reshape(len(condition.learning_rates), -1)
        means = [row[~np.isnan(row)].mean() if (~np.isnan(row)).any() else None for row in per_seed.T]
        found[metric] = estimate(values) | {"ci95": estimate(means)["ci95"]}
    return found


def _verdict(conditions: dict[str, Condition], baselines: tuple[str, ...]) -> str:
    """One sentence: the best learned condition against the best baseline (by validation), paired by seed."""
    learned = [name for name in conditions if name not in baselines]
    stands_best = lambda names: max(names, key=lambda name: conditions[name].standing(), default=None)
    ours, theirs = stands_best(learned), stands_best(baselines)
    told = " against ".join(_told(name, conditions[name]) for name in (ours, theirs) if name)
    if None in (ours, theirs):
        return told + "."
    mine, other = (np.array(conditions[name].metrics["test_accuracy"], np.float64) for name in (ours, theirs))
    mine = [row[~np.isnan(row)].mean() if (~np.isnan(row)).any() else None for row in mine.reshape(-1, len(other)).T]
    difference = statistics.paired_difference(mine, other.tolist())
    if difference["mean"] is None:
        return f"{told}; no seed on which both are finite."
    low, high = ("?" if bound is None else f"{bound:.3f}" for bound in difference["ci95"])
    return f"{told}; difference {difference['mean']:+.3f} [{low}, {high}] over {len(other)} fresh seeds."


def _told(name: str, condition: Condition) -> str:
    """'learned: test accuracy 0.96, median 250 steps to 99 %'."""
    ((metric, values),) = ((m, v) for m, v in condition.metrics.items() if m.startswith("steps_to_"))
    median, percent = statistics.median_with_unreached(values), metric.removeprefix("steps_to_")
    pace = f"{percent} % not reached in the median" if median is None else f"median {median:g} steps to {percent} %"
    accuracy = estimate(condition.metrics["test_accuracy"])["mean"]
    return f"{name}: test accuracy {'nowhere finite' if accuracy is None else f'{accuracy:.3f}'}, {pace}"
