"""Learned functions as files that others can use: portable JSON, CSV in the published layout, a picture."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Float

from ssa_jax import functions
from ssa_jax.report import plots
from ssa_jax.report.run_folder import RunFolder, is_writer

logger = logging.getLogger(__name__)

OUTSIDE_WARNING = 0.01  # the share of inputs beyond the knots above which the range is too narrow


def export(
    run_folder: RunFolder,
    name: str,
    function: functions.Spline,
    params: Mapping[str, Float[Array, "..."]],
    initial_params: Mapping[str, Float[Array, "..."]],
    support: Float[Array, " K-1"],
    outside_fraction: float,
) -> None:
    """Writes functions/<name>.json, .csv (published layout) and .png of a learned spline. Process 0 only.

    Warns when more than 1 % of the inputs fell outside the spline's range, where it cannot bend.

    Args:
        run_folder: the run's folder.
        name: the file's name, such as 'mlp' or, in a folder of its own, 'learned-0/mlp'.
        function: the spline.
        params: its learned values.
        initial_params: those that it began with.
        support: how often each interval between knots was visited.
        outside_fraction: the share of inputs outside the range.
    """
    if not is_writer():
        return
    if outside_fraction > OUTSIDE_WARNING:
        logger.warning(
            "%s: %.1f %% of its inputs lie outside [%g, %g]; widen its range or normalise the pre-activations.",
            name, 100 * outside_fraction, function.low, function.high,
        )  # fmt: skip
    stem = run_folder.path / "functions" / name
    functions.save(stem, function, params, support={"counts": support, "outside": outside_fraction})
    values, initial = np.asarray(params["values"]), np.asarray(initial_params["values"])
    single = functions.Spline(function.knots, function.low, function.high)  # the layout has a line pair a channel
    functions.write_csv(f"{stem}.csv", [(single, {"values": row}) for row in np.atleast_2d(values)])
    grid, label = np.asarray(function.grid()), name.replace("_", " ")
    picture = {"label": label, "grid": grid, "values": values, "initial": initial, "support": support}
    plots.learned_functions(f"{stem}.png", [picture])


def gallery(path: Path, folders: Sequence[Path]) -> None:
    """Draws every learned function of several runs into one PNG, a panel each."""
    pictures = []
    for folder in folders:
        for file in sorted((folder / "functions").rglob("*.json")):
            learned = functions.load(file)
            panel = {
                "label": f"{folder.name} {file.parent.name} {file.stem}".replace("_", " "),
                "grid": np.asarray(learned.function.grid()),
                "values": np.asarray(learned.params["values"]),
                "initial": np.asarray(learned.function.init(jax.random.key(0))["values"]),
                "support": None if learned.support is None else np.asarray(learned.support["counts"]),
            }
            pictures.append(panel)
    if not pictures:
        raise ValueError(f"No learned function in {', '.join(map(str, folders))}.")
    plots.learned_functions(path, pictures)
