"""Pictures of a run: what was learned, how fast, how the conditions compare. One style, no global state."""

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ssa_jax.evaluation import statistics
from ssa_jax.report.run_folder import write_atomic

# Okabe and Ito's palette, which colour-blind readers can tell apart; the first belongs to what was learned
LEARNED = "#0072B2"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5C4B99")
INK, QUIET, GRID, PAPER = "#222222", "#767676", "#E6E6E6", "#FFFFFF"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
FONT = 10


def colours(conditions: Sequence[str]) -> dict[str, str]:
    """A colour for each condition: blue for the first learned one, the others by their order.

    >>> colours(["gelu", "learned"])
    {'gelu': '#D55E00', 'learned': '#0072B2'}
    """
    first = next((name for name in conditions if name.startswith("learned")), None)
    others = [name for name in conditions if name != first]
    chosen = {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(others)} | {first: LEARNED}
    return {name: chosen[name] for name in conditions}


def _axes(figure: Figure, rows: int = 1, columns: int = 1) -> list[Axes]:
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes:
        ax.set_axisbelow(True)
        ax.grid(color=GRID, linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(QUIET)
        ax.tick_params(colors=QUIET, labelcolor=INK, labelsize=FONT - 1, length=3)
    return list(axes)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: str | os.PathLike) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    write_atomic(path, picture.getvalue())


def learned_functions(path: str | os.PathLike, functions: Sequence[Mapping[str, Any]]) -> None:
    """Learned functions over their initial curves, one panel each, with the support shaded below.

    Args:
        path: the PNG to write.
        functions: dicts with `label`; `grid` [K]; `values` [K] or [F, K], one line a channel; `initial` like
            `values`, or None; `support` [K - 1], how often each interval was visited, or None. Where no input
            fell, the learned curve is pale: there it was not learned.
    """
    columns = 2 if len(functions) == 4 else min(len(functions), 3)
    rows = -(-len(functions) // columns)
    figure = _figure(max(5.4, 4.0 * columns), 3.4 * rows)
    axes = _axes(figure, rows, columns)
    for ax, function in zip(axes, functions, strict=False):
        _learned_panel(ax, function, legend=ax is axes[0])
    for ax in axes[len(functions) :]:
        ax.set_visible(False)
    _save(figure, path)


def _learned_panel(ax: Axes, function: Mapping[str, Any], legend: bool) -> None:
    grid = np.asarray(function["grid"], np.float64)
    values = np.atleast_2d(np.asarray(function["values"], np.float64))
    thin = min(1.0, max(0.15, 4 / len(values)))  # many channels must not hide each other
    ax.set_title(function["label"], loc="left", fontsize=FONT, color=INK, fontweight="bold")
    ax.set_xlabel("input", fontsize=FONT - 1, color=INK)
    ax.set_xlim(grid[0], grid[-1])
    handles = []
    if function.get("initial") is not None:
        for initial in np.atleast_2d(np.asarray(function["initial"], np.float64)):
            (line,) = ax.plot(grid, initial, color=QUIET, linewidth=1.3, linestyle=(0, (4, 2)), alpha=thin)
        handles.append((line, "initial"))
    visited = np.ones(len(grid) - 1, bool)
    if function.get("support") is not None:
        support = np.asarray(function["support"], np.float64)
        visited = support > 0
        height = 0.22 * support / max(support.max(), 1e-30)  # of the panel; the curve keeps the rest to itself
        shade = ax.stairs(height, grid, fill=True, color=LEARNED, alpha=0.18, transform=ax.get_xaxis_transform())
        handles.append((shade, "inputs seen"))
    for row in values:
        ax.plot(grid, row, color=LEARNED, linewidth=1.3, alpha=0.35 * thin)
        learned = np.where(_bounds(visited), row, np.nan)
        (line,) = ax.plot(grid, learned, color=LEARNED, linewidth=2.2, alpha=thin, solid_capstyle="round")
    handles.insert(0, (line, "learned"))
    if function.get("support") is not None:
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.3 * (high - low), high)  # room for the support below the curve
    if legend:
        ax.legend(*zip(*handles, strict=True), frameon=False, fontsize=FONT - 2, loc="best", labelcolor=INK)


def _bounds(visited: Shaped[np.ndarray, " K-1"]) -> Shaped[np.ndarray, " K"]:
    """Which knots bound a visited interval."""
    return np.append(visited, False) | np.insert(visited, 0, False)


def learning_curves(
    path: str | os.PathLike,
    curves: Mapping[str, tuple[Shaped[np.ndarray, " N"], Float[np.ndarray, "N R"]]],
    ylabel: str,
    threshold: float | None = None,
) -> None:
    """Median over seeds with the interquartile band, one line a condition, labelled at its end.

    Args:
        path: the PNG to write.
        curves: condition -> (steps [N], values [N, R]); missing values (NaN) are left out.
        ylabel: what the values are.
        threshold: a level to mark, such as 0.99.
    """
    figure = _figure(7.2, 4.0)
    (ax,) = _axes(figure)
    palette, ends, seeds = colours(list(curves)), {}, set()
    for i, (condition, (steps, values)) in enumerate(curves.items()):
        steps, values = np.asarray(steps), np.asarray(values, np.float64)
        kept = ~np.isnan(values).all(axis=1)
        if not kept.any():
            continue
        steps, values = steps[kept], values[kept]
        low, middle, high = np.nanquantile(values, [0.25, 0.5, 0.75], axis=1)
        dash, on_top = DASHES[i // (len(OTHERS) + 1) % len(DASHES)], 3 if palette[condition] == LEARNED else 2
        ax.fill_between(steps, low, high, color=palette[condition], alpha=0.16, linewidth=0)
        ax.plot(steps, middle, color=palette[condition], linewidth=2.0, linestyle=dash, zorder=on_top)
        ends[condition] = (steps[-1], middle[-1])
        seeds.add(values.shape[1])
    if threshold is not None:
        ax.axhline(threshold, color=QUIET, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
        ax.annotate(
            f"{threshold:g}", (0, threshold), (4, -3), ("axes fraction", "data"), "offset points",
            fontsize=FONT - 2, color=QUIET, va="top",
        )  # fmt: skip
    ax.set_xlabel("step", fontsize=FONT, color=INK)
    ax.set_ylabel(ylabel, fontsize=FONT, color=INK)
    ax.margins(x=0)
    count = " to ".join(str(n) for n in sorted({min(seeds, default=0), max(seeds, default=0)}))
    ax.set_title(f"median and interquartile band over {count} seeds", loc="left", fontsize=FONT - 1, color=QUIET)
    _label_ends(ax, ends, palette)
    _save(figure, path)


def _label_ends(ax: Axes, ends: Mapping[str, tuple[float, float]], palette: Mapping[str, str]) -> None:
    """Writes each condition's name at the right of its line, moved apart where lines end close together."""
    names = sorted(ends, key=lambda name: ends[name][1])
    heights = _spread([ends[name][1] for name in names], apart=0.06 * float(np.ptp(ax.get_ylim())))
    for name, height in zip(names, heights, strict=True):
        ax.annotate(
            name, (1, height), (6, 0), ("axes fraction", "data"), "offset points",
            fontsize=FONT, color=palette[name], va="center", fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _spread(heights: Sequence[float], apart: float) -> list[float]:
    """Ascending heights moved as little as needed to be `apart`: close ones form a stack around their mean.

    >>> _spread([0.0, 1.0, 1.0], apart=0.5)
    [0.0, 0.75, 1.25]
    """
    stacks: list[list[float]] = []
    for height in heights:
        stacks.append([height])
        while len(stacks) > 1 and _foot(stacks[-1], apart) < _foot(stacks[-2], apart) + len(stacks[-2]) * apart:
            stacks[-2:] = [stacks[-2] + stacks[-1]]
    return [_foot(stack, apart) + i * apart for stack in stacks for i in range(len(stack))]


def _foot(stack: Sequence[float], apart: float) -> float:
    return float(np.mean(stack)) - (len(stack) - 1) * apart / 2


def comparison(
    path: str | os.PathLike, values: Mapping[str, Sequence[float | None]], xlabel: str, chance: float | None = None
) -> None:
    """One row a condition: every seed as a dot, the mean with its 95 % interval above it.

    Args:
        path: the PNG to write.
        values: condition -> one value a seed; missing ones are left out and counted beside the name.
        xlabel: what the values are.
        chance: a trivial predictor's value to mark.
    """
    figure = _figure(7.2, 1.1 + 0.55 * len(values))
    (ax,) = _axes(figure)
    ax.grid(visible=False, axis="y")
    palette, names = colours(list(values)), []
    for row, (condition, seeds) in enumerate(values.items()):
        estimate = statistics.mean_ci95(seeds)
        present = [value for value in estimate["values"] if value is not None]
        ax.plot(present, [row + 0.16] * len(present), "o", color=palette[condition], alpha=0.45, ms=5, mew=0)
        if present:
            low, high = (x if x is not None else estimate["mean"] for x in estimate["ci95"])
            ax.plot([low, high], [row - 0.12] * 2, color=palette[condition], linewidth=2.4, solid_capstyle="round")
            ax.plot(estimate["mean"], row - 0.12, "D", color=palette[condition], ms=6, mec=PAPER, mew=1)
        names.append(condition + (f"\n({estimate['missing']} missing)" if "missing" in estimate else ""))
    if chance is not None:
        ax.axvline(chance, color=QUIET, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
        ax.annotate(
            "chance", (chance, 1), (3, -2), ("data", "axes fraction"), "offset points",
            fontsize=FONT - 2, color=QUIET, va="top",
        )  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=FONT)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel(xlabel, fontsize=FONT, color=INK)
    ax.set_title("dots: seeds; diamond: mean, 95 % interval", loc="left", fontsize=FONT - 1, color=QUIET)
    _save(figure, path)
