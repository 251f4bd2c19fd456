"""Learned functions leave the run as JSON, CSV and a picture."""

import jax
import numpy as np
import pytest

from ssa_jax import functions
from ssa_jax.report.functions import export
from ssa_jax.report.run_folder import RunFolder


@pytest.fixture
def spline():
    return functions.get("spline", knots=8, low=-4.0, high=4.0)


def export_spline(folder, spline, name="mlp", outside=0.0):
    initial = spline.init(jax.random.key(0))
    learned = {"values": initial["values"] + 1.0}
    export(RunFolder(folder), name, spline, learned, initial, np.arange(7.0), outside)
    return learned


@pytest.mark.parametrize("name", ["mlp", "learned-0/mlp"])
def test_json_csv_and_picture_hold_the_learned_function(tmp_path, spline, name):
    learned = export_spline(tmp_path, spline, name)
    x = np.linspace(-5, 5, 21, dtype=np.float32)
    expected = spline.apply(learned, x)
    np.testing.assert_array_equal(functions.load(tmp_path / "functions" / f"{name}.json")(x), expected)
    [(read, params)] = functions.read_csv(tmp_path / "functions" / f"{name}.csv")
    np.testing.assert_allclose(read.apply(params, x), expected, atol=1e-5)
    assert (tmp_path / "functions" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_csv_of_a_spline_by_channel_holds_one_spline_a_channel(tmp_path):
    learned = export_spline(tmp_path, functions.get("spline", knots=8, low=-4.0, high=4.0, channels=3))
    read = functions.read_csv(tmp_path / "functions" / "mlp.csv")
    np.testing.assert_allclose([params["values"] for _, params in read], learned["values"], atol=1e-6)


@pytest.mark.parametrize(("outside", "warns"), [(0.005, False), (0.02, True)])
def test_inputs_outside_the_range_are_warned_of(tmp_path, spline, caplog, outside, warns):
    export_spline(tmp_path, spline, outside=outside)
    assert ("2.0 % of its inputs lie outside [-4, 4]" in caplog.text) == warns


def test_only_process_0_exports(tmp_path, spline, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    export_spline(tmp_path, spline)
    assert list(tmp_path.iterdir()) == []
