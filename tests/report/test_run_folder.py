"""The run folder survives kills, full disks and changed configs."""

import errno
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax.report import run_folder
from ssa_jax.report.run_folder import RunFolder, open_run, plain, write_atomic

CONFIG = {"seed": 3, "task": {"name": "parity", "bits": 10}, "stage1": {"replicas": 8, "seeds": (0, 1), "lr": 1e-3}}


@pytest.fixture
def run(tmp_path):
    return open_run(tmp_path / "runs" / "parity", CONFIG, {"stage1.replicas": 8})


def test_config_records_what_runs_where(run):
    record = json.loads((run.path / "config.json").read_text())
    assert record["config"]["stage1"]["seeds"] == [0, 1]
    assert record["overrides"] == {"stage1.replicas": 8}
    assert record["seeds"] == {"seed": 3, "stage1.seeds": [0, 1]}
    assert record["environment"]["versions"]["jax"] == jax.__version__
    assert record["environment"]["devices"]["count"] == jax.device_count()
    assert record["environment"]["commit"]


def test_path_is_absolute_and_urls_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_run("here", CONFIG, {}).path == tmp_path / "here"
    with pytest.raises(ValueError, match="gs://bucket/run"):
        open_run("gs://bucket/run", CONFIG, {})


def test_same_config_resumes(run):
    before = (run.path / "config.json").read_text()
    assert open_run(run.path, CONFIG, {}) == run
    assert (run.path / "config.json").read_text() == before


def test_changed_config_is_refused_with_every_changed_field(run):
    changed = {"seed": 3, "task": {"name": "dyck"}, "stage1": CONFIG["stage1"] | {"replicas": 4, "stagger": True}}
    with pytest.raises(ValueError) as error:
        open_run(run.path, changed, {})
    lines = [line.strip() for line in str(error.value).splitlines()]
    assert "stage1.replicas: 8 -> 4" in lines
    assert "stage1.stagger: absent -> True" in lines
    assert "task.bits: 10 -> absent" in lines
    assert "task.name: 'parity' -> 'dyck'" in lines
    assert "lr" not in str(error.value)


def test_another_environment_joins_the_history(run, monkeypatch):
    elsewhere = run_folder.environment() | {"devices": {"platform": "tpu", "count": 8}}
    monkeypatch.setattr(run_folder, "environment", lambda: elsewhere)
    for _ in range(2):
        open_run(run.path, CONFIG, {})
    record = run.read_json("config.json")
    assert record["environment"]["devices"]["platform"] == "cpu"
    assert [entry["environment"]["devices"]["platform"] for entry in record["history"]] == ["tpu"]


def test_records_come_back_with_null_for_what_is_not_finite(run):
    run.log({"stage": "stage1", "step": 25, "values": jnp.array([0.5, jnp.nan]), "mean": np.float32("inf")})
    run.log({"stage": "stage2/gelu", "step": 25, "values": [1.0]})
    assert run.records("stage1") == [{"stage": "stage1", "step": 25, "values": [0.5, None], "mean": None}]
    assert len(run.records()) == 2
    assert "NaN" not in run.metrics.read_text()


def test_plain_knows_arrays_paths_and_low_precision(tmp_path):
    value = {"a": jnp.bfloat16(0.5), "b": np.bool_(True), "c": (tmp_path, None), 4: np.arange(2), "d": -np.inf}
    assert plain(value) == {"a": 0.5, "b": True, "c": [str(tmp_path), None], "4": [0, 1], "d": None}
    json.dumps(plain(value), allow_nan=False)


def test_a_torn_last_line_is_dropped(run):
    run.log({"stage": "stage1", "step": 1})
    with open(run.metrics, "a") as file:
        file.write('{"stage": "stage1", "st')
    assert [record["step"] for record in run.records()] == [1]
    run = open_run(run.path, CONFIG, {})
    run.log({"stage": "stage1", "step": 2})
    assert [record["step"] for record in run.records()] == [1, 2]


def test_a_broken_line_in_the_middle_is_named(run):
    run.metrics.write_text('{"step": 1}\nbroken\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        run.records()


def test_truncate_drops_only_that_stage_beyond_the_step(run):
    for step in (10, 20, 30):
        run.log({"stage": "stage1", "step": step})
        run.log({"stage": "stage2", "step": step})
    run.log({"stage": "stage1", "note": "no step"})
    with open(run.metrics, "a") as file:
        file.write('{"torn')
    run.truncate("stage1", 10)
    assert [record.get("step") for record in run.records("stage1")] == [10, None]
    assert [record["step"] for record in run.records("stage2")] == [10, 20, 30]
    assert run.metrics.read_bytes().endswith(b"}\n")


def test_truncate_before_the_first_record(run):
    run.truncate("stage1", 0)
    assert run.records() == []


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_names_it(run, monkeypatch, broken):
    run.write_json("summary.json", {"verdict": "old"})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match=r"summary\.json: No space left on device.*intact") as error:
        run.write_json("summary.json", {"verdict": "new"})
    assert error.value.errno == errno.ENOSPC
    assert run.read_json("summary.json") == {"verdict": "old"}
    assert not list(run.path.glob(".*"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's always full device")
def test_a_full_disk_stops_the_log_with_its_path(run):
    run.metrics.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"metrics\.jsonl: No space left on device"):
        run.log({"step": 1})


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write .*/file/run/config\.json: Not a directory"):
        open_run(tmp_path / "file" / "run", CONFIG, {})


def test_only_process_0_writes_and_all_read(run, monkeypatch):
    run.log({"stage": "stage1", "step": 1})
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    other = open_run(run.path, CONFIG, {})
    other.log({"stage": "stage1", "step": 2})
    other.truncate("stage1", 0)
    other.write_json("summary.json", {})
    write_atomic(other.path / "plot.png", b"")
    assert [record["step"] for record in other.records()] == [1]
    assert [path.name for path in sorted(run.path.iterdir())] == ["config.json", "metrics.jsonl"]
    with pytest.raises(ValueError, match="seed: 3 -> 4"):
        open_run(run.path, CONFIG | {"seed": 4}, {})


def test_reading_what_is_not_json_names_the_file(tmp_path):
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is not JSON"):
        RunFolder(tmp_path).read_json("summary.json")
