"""JSON and CSV files of functions: what goes in comes out, and what is wrong is said with the file's name."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax.functions import Polynomial, Spline, load, read_csv, save, write_csv

DATA = Path(os.environ.get("SSA_JAX_DATA", Path(__file__).parents[2] / "../shared/data")).resolve()


def random_values(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * 10.0**-3, jnp.float32)


def saved(folder, **changes):
    """A valid file with some of its fields changed."""
    path = save(folder / "mlp", Spline(5), {"values": random_values(5)})
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize("channels", [None, 3])
def test_json_gives_back_the_same_bits(tmp_path, channels):
    spline = Spline(17, -1.1, 3.3, "linear", "identity", channels=channels)
    params = {"values": random_values(*spline.shape).at[..., 0].set(1e-45).at[..., 1].set(-3.4e38)}
    support = spline.support(random_values(7, 3) * 1000)
    path = save(tmp_path / "new folder" / "layer.0", spline, params, support)
    assert path == tmp_path / "new folder" / "layer.0.json"
    learned = load(path)
    assert learned.function == spline
    assert learned.params["values"].dtype == jnp.float32
    for there, here in ((learned.params, params), (learned.support, support)):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), there, here)
    x = random_values(4, 3) * 1000
    np.testing.assert_array_equal(learned(x), spline.apply(params, x))


def test_a_folder_with_exactly_one_function_loads(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "notes.json").write_text("no JSON")
    with pytest.raises(ValueError, match="found none"):
        load(tmp_path)
    save(tmp_path / "functions" / "mlp", Polynomial(3), {"coefficients": random_values(4)})
    assert load(tmp_path).function == load(tmp_path / "functions").function == Polynomial(3)
    save(tmp_path / "functions" / "attention", Spline(5), {"values": random_values(5)})
    with pytest.raises(ValueError, match=r"attention\.json, functions/mlp\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not a function file"),
        ({"version": 2}, "version 2"),
        ({"name": "splin"}, "'spline'"),
        ({"options": {"knot": 5}}, "'knots'"),
        ({"options": {"knots": 1}}, "at least 2"),
        ({"options": [5]}, "mapping"),
        ({"options": {"knots": 6}}, r"\(6,\); got \(5,\)"),
        ({"params": {"value": [0, 0, 0, 0, 0]}}, "names \\['values'\\]"),
        ({"params": None}, "names \\['values'\\]"),
        ({"params": {"values": [0, 0, 0, 0, float("nan")]}}, "finite"),
        ({"params": {"values": [0, 0, 0, 0, 1e300]}}, "finite"),
        ({"params": {"values": [[0, 0], [0]]}}, "not numbers"),
        ({"support": {"counts": [1, 2, 3], "outside": 0}}, r"\(4,\); got \(3,\)"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_name(tmp_path, changes, message):
    path = saved(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("{half", "not JSON"), ("[]", "not a function"), ("{}", "not a f")]
)
def test_files_that_are_no_function_are_refused(tmp_path, text, message):
    path = tmp_path / "mlp.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)
    if text == "{}":
        path.write_text('{"format": "ssa_jax function", "version": 1, "name": "spline"}')
        with pytest.raises(ValueError, match="options, params, support missing"):
            load(path)


def test_what_cannot_be_loaded_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="finite"):
        save(tmp_path / "mlp", Spline(5), {"values": random_values(5).at[2].set(jnp.nan)})
    with pytest.raises(ValueError, match=r"\(5,\)"):
        save(tmp_path / "mlp", Spline(5), {"values": random_values(6)})
    assert not list(tmp_path.iterdir())


def test_csv_gives_back_the_same_bits(tmp_path):
    splines = [(Spline(k, -k, k, init="constant"), {"values": random_values(k, seed=k)}) for k in (2, 7, 64)]
    write_csv(tmp_path / "a.csv", splines)
    assert [line.count(",") + 1 for line in (tmp_path / "a.csv").read_text().splitlines()] == [2, 2, 7, 7, 64, 64]
    again = read_csv(tmp_path / "a.csv")
    assert [spline for spline, _ in again] == [spline for spline, _ in splines]
    for (_, there), (_, here) in zip(again, splines, strict=True):
        np.testing.assert_array_equal(there["values"], here["values"])
    with pytest.raises(ValueError, match="no channels"):
        write_csv(tmp_path / "b.csv", [(Spline(5, channels=2), {"values": random_values(2, 5)})])


def test_csv_in_the_published_layout(tmp_path):
    (tmp_path / "mlp.csv").write_text("-15.0,-5.0,5.0,15.0\n0.01,-31.25,1.0852246,0.01\n")
    [(spline, params)] = read_csv(tmp_path / "mlp.csv")
    assert spline == Spline(4, -15, 15, init="constant")
    np.testing.assert_array_equal(params["values"], np.array([0.01, -31.25, 1.0852246, 0.01], np.float32))
    np.testing.assert_allclose(
        spline.apply(params, jnp.array([-99.0, 0.0])), [0.01, (-31.25 + 1.0852246) / 2], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 lines"),
        ("0,1\n0,1\n0,1\n", "3 lines"),
        ("0,1,2\n0,1\n", "lines 1 and 2: 3 positions, 2 values"),
        ("0,1\n0,1\n0\n0\n", "lines 3 and 4"),
        ("0,1\n0,x\n", "lines 1 and 2.*'x'"),
        ("0,1\n0,nan\n", "finite"),
        ("0,1,3\n0,1,2\n", "even steps"),
        ("1,0\n0,1\n", "increase"),
    ],
)
def test_what_is_wrong_in_a_csv_is_said_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_csv(path)
    assert str(path) in str(error.value)


def test_the_published_splines(tmp_path):
    path = DATA / "lm_afs" / "shared_mlp_and_attention.csv"
    if not path.exists():
        pytest.skip(f"no {path}: set SSA_JAX_DATA to the folder of data files")
    splines = read_csv(path)
    assert [spline for spline, _ in splines] == [Spline(64, -15, 15, init="constant")] * 8
    mlp, attention = (np.asarray(splines[layer][1]["values"]) for layer in (0, 4))
    # 4 MLP layers and 4 attention layers that share one spline each; published ranges and unvisited knots
    assert all((splines[layer][1]["values"] == (mlp if layer < 4 else attention)).all() for layer in range(8))
    assert [round(float(v), 1) for v in (mlp.min(), mlp.max(), attention.min(), attention.max())] == [
        -71.6, 63.9, -31.5, 28.5,
    ]  # fmt: skip
    assert [int((values == np.float32(0.01)).sum()) for values in (mlp, attention)] == [0, 11]
    write_csv(tmp_path / "again.csv", splines)
    ours, theirs = ([line.split(",") for line in p.read_text().split()] for p in (tmp_path / "again.csv", path))
    np.testing.assert_array_equal(np.array(ours[1::2], np.float32), np.array(theirs[1::2], np.float32))
    np.testing.assert_allclose(np.array(ours[::2], np.float32), np.array(theirs[::2], np.float32), rtol=3e-7)
