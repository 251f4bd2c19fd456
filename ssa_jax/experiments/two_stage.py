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
    polynomial_errors = {}
    if config.functions.polynomial_degree:
        fitted, polynomial_errors = judge.polynomials(sources, config.functions.polynomial_degree)
        sources += fitted
    results, details, verdicts = {}, {}, []
    for target, changes in sorted(config.targets.items(), key=lambda item: item[0] != "same"):
        on_target = build.changed(config, changes, f"targets.{target}")
        conditions = judge.judge(session, on_target, target, sources)
        conditions = _pooled(conditions, [source.name for source in sources])
        prefix = "" if target == "same" else f"{target}: "
        results |= {f"{prefix}{name}": _estimates(c) for name, c in conditions.items()}
        trivial = build.task_of(on_target).trivial()
        results |= {f"{prefix}{name} (trivial)": {"test_accuracy": estimate([v])} for name, v in trivial.items()}
        details[target] = {name: {"learning_rate": c.learning_rate, "swept": c.swept} for name, c in conditions.items()}
        verdicts.append(prefix + _verdict(conditions, config))
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
    variants = config.variants or {"": {}}
    return [
        search(session, build.changed(config, changes, f"variants.{variant}"), f"{variant or 'learned'}-{seed}", seed)
        for variant, changes in variants.items()
        for seed in config.stage1.seeds
    ]


def _pooled(conditions: dict[str, Condition], names: list[str]) -> dict[str, Condition]:
    """Conditions with the searches that differ by their seed only put together: learned-0, learned-1 -> learned."""
    groups: dict[str, list[Condition]] = {}
    for name, condition in conditions.items():
        groups.setdefault(name.rsplit("-", 1)[0] if name in names else name, []).append(condition)
    return {name: group[0] if len(group) == 1 else _pool(group) for name, group in groups.items()}


def _pool(group: list[Condition]) -> Condition:
    metrics = {metric: [value for c in group for value in c.metrics[metric]] for metric in group[0].metrics}
    swept = {f"search {i}, {rate}": v for i, c in enumerate(group) for rate, v in c.swept.items()}
    return Condition(
        metrics, group[0].learning_rate, swept, group[0].steps, np.concatenate([c.accuracy for c in group], axis=1)
    )


def _estimates(condition: Condition) -> dict[str, Any]:
    return {metric: estimate(values) for metric, values in condition.metrics.items()}


def _verdict(conditions: dict[str, Condition], config: Config) -> str:
    """One sentence: the first learned condition against the best baseline, paired by seed."""
    best = max(config.baselines, key=lambda name: conditions[name].standing(), default=None)
    name, ours = next(iter(conditions.items()))
    mine = np.array(ours.metrics["test_accuracy"], np.float64)
    told = f"{name}: test accuracy {np.nanmean(mine):.3f}{_pace(ours)}"
    if best in (None, name):
        return told + "."
    theirs = conditions[best].metrics["test_accuracy"]
    difference = statistics.paired_difference(np.nanmean(mine.reshape(-1, len(theirs)), axis=0).tolist(), theirs)
    low, high = (f"{bound:.3f}" if bound is not None else "?" for bound in difference["ci95"])
    return (
        f"{told}, against {best}: {np.nanmean(np.array(theirs, np.float64)):.3f}{_pace(conditions[best])}; "
        f"difference {difference['mean']:+.3f} [{low}, {high}] over {len(theirs)} fresh seeds."
    )


def _pace(condition: Condition) -> str:
    """', median N steps to 99 %' as far as the threshold was reached."""
    ((metric, values),) = ((m, v) for m, v in condition.metrics.items() if m.startswith("steps_to_"))
    median, percent = statistics.median_with_unreached(values), metric.rsplit("_", 1)[-1]
    return f", median {percent} % not reached" if median is None else f", median {median:g} steps to {percent} %"
