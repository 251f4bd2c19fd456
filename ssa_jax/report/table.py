"""The final table, one row a condition: for the terminal, as Markdown, and as cells for report.html."""

import dataclasses
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import rich.box
import rich.markup
import rich.table

from ssa_jax.evaluation import statistics
from ssa_jax.report.run_folder import RunFolder

NOTHING = "-"


@dataclasses.dataclass(frozen=True)
class Table:
    """A heading a column, and rows of cells, all strings; the first column names the row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown; figures are aligned to the right."""
        escaped = [[cell.replace("|", "\\|") for cell in row] for row in (self.header, *self.rows)]
        rule = [":--", *["--:"] * (len(self.header) - 1)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:])) + "\n"

    def rich(self, title: str | None = None) -> rich.table.Table:
        """The table for a terminal: `rich.print(table.rich())`."""
        look = {"box": rich.box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False, "title_justify": "left"}
        table = rich.table.Table(title=title, header_style="bold", **look)
        for i, (heading, *cells) in enumerate(zip(self.header, *self.rows, strict=True)):
            widest = max(map(len, cells), default=0)  # headings wrap to their figures, so that 80 columns hold a row
            lines = textwrap.wrap(heading, max(widest, 8), break_long_words=False, break_on_hyphens=False)
            table.add_column(rich.markup.escape("\n".join(lines)), justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*map(rich.markup.escape, row), style="bold" if is_learned(row[0]) else None)
        return table


def is_learned(condition: str) -> bool:
    """Whether a condition is the learned one: its name says so, after the target that it may begin with.

    >>> [is_learned(name) for name in ("gelu", "learned", "less_data: learned")]
    [False, True, True]
    """
    return condition.rsplit(": ", 1)[-1] == "learned"


def searched(summary: Mapping[str, Any], condition: str) -> Mapping[str, float] | None:
    """The cost of the search behind a condition (of all its seeds), None where nothing was searched.

    >>> cost = {"stage1": {"model_steps": 8}, "stage1 joint": {"model_steps": 9}, "stage2": {"model_steps": 5}}
    >>> [searched({"cost": cost}, name) for name in ("learned", "less_data: joint", "polynomial learned", "gelu")]
    [{'model_steps': 8}, {'model_steps': 9}, {'model_steps': 8}, None]
    """
    name = condition.rsplit(": ", 1)[-1].removeprefix("polynomial ")
    return summary["cost"].get("stage1" if name == "learned" else f"stage1 {name}")


def read_summary(run: RunFolder | str | os.PathLike) -> dict[str, Any]:
    """The summary.json of a run folder. ValueError when it lacks one of the parts that every summary has."""
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    summary = run.read_json("summary.json")
    if missing := [part for part in ("experiment", "verdict", "results", "cost", "environment") if part not in summary]:
        raise ValueError(f"{run.path / 'summary.json'} lacks {', '.join(missing)}.")
    return summary


def comparison(summary: Mapping[str, Any], metrics: Sequence[str] | None = None) -> Table:
    """What was measured: one row a condition, trivial predictors included; one column a metric.

    `steps_to_...` shows the median (a seed that never got there counts as infinite) and how many seeds got there;
    any other metric its mean and 95 % interval. Where the run has a stage 1, its cost stands beside the
    conditions that use it (see `searched`), in the steps of one model.

    Args:
        summary: the content of summary.json.
        metrics: the columns; by default all metrics, in order of appearance.
    """
    results = summary["results"]
    metrics = metrics or list(dict.fromkeys(metric for measured in results.values() for metric in measured))
    header = ["condition", *map(_heading, metrics)]
    rows = [[name, *(_cell(metric, measured.get(metric)) for metric in metrics)] for name, measured in results.items()]
    if any(stage.startswith("stage1") for stage in summary["cost"]):
        header.append("stage-1 model-steps (time)")
        for row in rows:
            stage1 = searched(summary, row[0])
            row.append(_cost(stage1) if stage1 else NOTHING)
    return Table(tuple(header), tuple(map(tuple, rows)))


def joined(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """Several runs in one table: accuracy and steps to the threshold of each condition, named 'run: condition'."""
    header, rows = (), []
    for run, summary in summaries.items():
        metrics = {metric for measured in summary["results"].values() for metric in measured}
        kept = ["test_accuracy", *sorted(metric for metric in metrics if metric.startswith("steps_to_"))]
        part = comparison(summary, kept)
        header = max(header, part.header, key=len)
        rows += [(f"{run}: {name}", *cells) for name, *cells in part.rows]
    return Table(header, tuple((*row, *[NOTHING] * (len(header) - len(row))) for row in rows))


def costs(summary: Mapping[str, Any]) -> Table:
    """What every stage cost: steps of one model, seconds, floating-point operations, and what else was counted."""
    kinds = list(dict.fromkeys(kind for cost in summary["cost"].values() for kind in cost))
    rows = [[stage, *(_figure(cost.get(kind)) for kind in kinds)] for stage, cost in summary["cost"].items()]
    header = ("stage", *(kind.replace("_", "-").replace("flops", "FLOPs") for kind in kinds))
    return Table(header, tuple(map(tuple, rows)))


def _heading(metric: str) -> str:
    if metric.startswith("steps_to_"):
        return f"steps to {metric.removeprefix('steps_to_')} % (seeds)"
    return metric.replace("_", " ")


def _cell(metric: str, estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return NOTHING
    values = estimate["values"]
    if metric.startswith("steps_to_"):
        median = statistics.median_with_unreached(values)
        reached = sum(value is not None for value in values)
        return f"{'unreached' if median is None else _figure(median)} ({reached}/{len(values)})"
    is_accuracy = metric.endswith("accuracy")
    show = "{:.3f}".format if is_accuracy else _figure
    if estimate["mean"] is None:
        return f"none ({len(values)} missing)"
    low, high = estimate["ci95"]
    text = show(estimate["mean"])
    if low is not None:
        # a t interval may leave [0, 1], an accuracy cannot
        low, high = (max(low, 0.0), min(high, 1.0)) if is_accuracy else (low, high)
        text += f" [{show(low)}, {show(high)}]"
    missing = estimate.get("missing", 0)
    return text + (f" ({missing} missing)" if missing else "")


def _cost(cost: Mapping[str, Any]) -> str:
    return f"{_figure(cost.get('model_steps'))} ({_figure(cost.get('seconds'))} s)"


def _figure(value: float | None) -> str:
    """A number as a reader wants it.

    >>> [_figure(x) for x in (None, 12000, 14.04, 0.003, 3.2e12)]
    ['-', '12,000', '14', '0.003', '3.2e+12']
    """
    if value is None:
        return NOTHING
    if 100 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.3g}"
