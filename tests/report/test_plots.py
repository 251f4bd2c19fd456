"""Pictures are written whole, from any shape of input, without touching matplotlib's global state."""

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from ssa_jax.report import plots

GRID = np.linspace(-4, 4, 16)


def pixels(path):
    picture = matplotlib.image.imread(path)
    assert picture.std() > 0
    return picture


@pytest.mark.parametrize("count", [1, 5])
def test_learned_functions(tmp_path, count):
    function = {"label": "mlp", "grid": GRID, "values": np.sin(GRID), "initial": GRID, "support": np.arange(15)}
    plots.learned_functions(tmp_path / "functions.png", [function] * count)
    pixels(tmp_path / "functions.png")


def test_channels_and_absent_parts(tmp_path):
    function = {"label": "mlp", "grid": GRID, "values": np.outer(np.arange(6), GRID), "initial": None, "support": None}
    plots.learned_functions(tmp_path / "channels.png", [function])
    pixels(tmp_path / "channels.png")


def test_the_unvisited_part_looks_different(tmp_path):
    function = {"label": "mlp", "grid": GRID, "values": np.sin(GRID), "initial": None}
    plots.learned_functions(tmp_path / "all.png", [function | {"support": np.ones(15)}])
    plots.learned_functions(tmp_path / "half.png", [function | {"support": np.arange(15) > 7}])
    assert np.abs(pixels(tmp_path / "all.png") - pixels(tmp_path / "half.png")).max() > 0.3


def test_learning_curves_with_missing_values_and_a_diverged_condition(tmp_path):
    random = np.random.default_rng(0)
    steps, values = np.arange(5) * 25, random.uniform(size=(5, 4))
    values[2, 1] = np.nan
    curves = {"gelu": (steps, values), "learned": (steps, values[:, :2]), "relu": (steps, values * np.nan)}
    with np.errstate(all="raise"):
        plots.learning_curves(tmp_path / "curves.png", curves, "test accuracy", threshold=0.99)
    pixels(tmp_path / "curves.png")


def test_comparison_with_one_seed_and_with_none(tmp_path):
    values = {"gelu": [0.5, 0.6, None], "learned": [0.9], "relu": [None]}
    plots.comparison(tmp_path / "comparison.png", values, "test accuracy", chance=0.5)
    pixels(tmp_path / "comparison.png")


def test_a_condition_keeps_its_colour_and_learned_is_blue():
    assert plots.colours(["gelu", "learned", "relu"])["learned"] == plots.LEARNED
    assert len(set(plots.colours(["gelu", "learned", "relu", "silu", "learned_b"]).values())) == 5


def test_global_state_stays_untouched(tmp_path):
    before = dict(matplotlib.rcParams)
    plots.comparison(tmp_path / "comparison.png", {"gelu": [0.5, 0.6]}, "accuracy")
    assert dict(matplotlib.rcParams) == before


def test_labels_of_close_lines_do_not_overlap():
    spread = plots._spread([0.2, 0.99, 0.991, 1.0], apart=0.05)
    assert np.diff(spread).min() >= 0.05 - 1e-12
    assert spread[0] == 0.2
