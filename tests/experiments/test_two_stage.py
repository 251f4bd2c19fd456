"""The main job from the outside: a folder with everything, the same numbers after kills, bad input refused."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ssa_jax
from configs import default
from ssa_jax import experiments, functions
from ssa_jax.experiments import build
from ssa_jax.report.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
TARGETS = {"same": {}, "less": {"task": {"train_fraction": 0.4}}}


def config(**changes):
    """A minute's experiment cut to seconds: 6-bit parity, the MLP model."""
    small = default.get_config()
    small.task = dict(name="parity", seed=0, bits=6)
    small.model = default.mlp(width=0, hidden=16)
    small.stage1.update(dict(replicas=2, steps=20, batch_size=16, eval_every=5, restart_every=12))
    small.stage2.update(dict(replicas=2, steps=20, batch_size=16, eval_every=5))
    small.baselines = ("gelu",)
    small.checkpoint_every = 10
    with small.unlocked():
        small.update(changes)
    return small


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "parity"
    return folder, experiments.run(config(targets=TARGETS), folder)


def test_run_folder_holds_everything(finished):
    folder, summary = finished
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for name in ("config.json", "metrics.jsonl", "summary.json", "report.html", "plots/accuracy_same.png"):
        assert name in kept
    assert {f"functions/learned-0/mlp_all.{kind}" for kind in ("json", "csv", "png")} <= kept
    assert json.loads((folder / "summary.json").read_text())["verdict"] == summary["verdict"]


def test_summary_has_the_public_layout(finished):
    _, summary = finished
    assert {"experiment", "verdict", "results", "cost", "environment"} <= summary.keys()
    assert {"learned", "gelu", "chance (trivial)", "less: learned"} <= summary["results"].keys()
    accuracy = summary["results"]["learned"]["test_accuracy"]
    assert len(accuracy["values"]) == 2 and accuracy["ci95"][0] <= accuracy["mean"] <= accuracy["ci95"][1]
    assert "steps_to_99" in summary["results"]["gelu"]
    assert summary["cost"]["stage1"]["model_steps"] == 40 and summary["cost"]["stage1"]["flops"] > 0


def test_learned_function_moved_and_can_be_called(finished):
    folder, _ = finished
    learned = functions.load(folder / "functions" / "learned-0" / "mlp_all.json")
    start = learned.function.init(None)["values"]
    assert float(jnp.abs(learned.params["values"] - start).max()) > 1e-3
    assert learned(jnp.array([0.0, 1.0])).shape == (2,)


def test_finished_run_is_not_run_again(finished):
    folder, summary = finished
    before = (folder / "metrics.jsonl").read_bytes()
    assert experiments.run(config(targets=TARGETS), folder)["results"] == summary["results"]
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_loaded_functions_are_judged_without_a_search(finished, tmp_path):
    folder, summary = finished
    small = config()
    small.functions.load = str(folder / "functions" / "learned-0")
    small.functions.polynomial_degree = 5
    loaded = experiments.run(small, tmp_path / "again")
    assert (
        loaded["results"]["loaded"]["test_accuracy"]["values"]
        == summary["results"]["learned"]["test_accuracy"]["values"]
    )
    assert "stage1" not in loaded["cost"]
    assert "polynomial loaded" in loaded["results"] and 0 < loaded["polynomial_errors"]["loaded/mlp_all"] < 1


def test_published_csv_is_judged_on_another_task(finished, tmp_path):
    folder, _ = finished
    small = config()
    small.task = dict(name="modular_addition", seed=0, p=11)
    small.model = default.mlp(hidden=16)
    small.functions.load = str(folder / "functions" / "learned-0" / "mlp_all.csv")
    assert "loaded" in experiments.run(small, tmp_path / "csv")["results"]


def test_ordinary_training_learns_weights_only(tmp_path):
    summary = experiments.run(config(experiment="train"), tmp_path / "train")
    assert set(summary["results"]) == {"gelu", "chance (trivial)", "majority (trivial)"}
    assert set(summary["cost"]) == {"stage2"}


def test_changed_config_is_refused_with_the_field(finished):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"stage1\.replicas: 2 -> 3"):
        changed = config()
        changed.stage1.replicas = 3
        experiments.run(changed, folder)


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("experiment", "two_stages", "two_stage"),
        ("task.name", "party", "parity"),
        ("task.bits", 99, "bits"),
        ("functions.mlp.name", "spine", "spline"),
        ("functions.mlp.knots", 1, "knots"),
        ("functions.attention_place", "scores", "score"),
        ("functions.attention_place", "score", "no attention"),
        ("functions.sharing", "all", "all_layers"),
        ("stage1.mode", "heldout", "held_out"),
        ("stage1.mode", "frozen", "held_out"),
        ("stage1.eval_every", 7, "not a multiple"),
        ("stage1.replicas", 0, "stage1.replicas 0"),
        ("stage1.stagger", 1.5, "stagger 1.5"),
        ("stage1.optimizer.name", "adan", "adamw"),
        ("stage1.arch_optimizer.name", "adamw", "adam"),
        ("stage2.learning_rates", (0.0,), "learning rate 0.0"),
        ("stage2.optimizer.schedule", "cosin", "cosine"),
        ("stage2.accumulate", 3, "accumulate 3"),
        ("baselines", ("gellu",), "gelu"),
        ("variants", {"a": {"stage1": {"replica": 2}}}, "replicas"),
        ("replica_mapping", "pmap", "vmap"),
        ("mesh.data", 3, "mesh.data 3"),
        ("functions.load", "/nowhere/at/all.json", "/nowhere/at/all.json"),
    ],
)
def test_bad_config_stops_before_anything_is_written(path, value, message, tmp_path):
    bad = config()
    *parents, field = path.split(".")
    where = bad
    with bad.unlocked():
        for parent in parents:
            where = where[parent]
        where[field] = value
    with pytest.raises((ValueError, OSError), match=message):
        experiments.run(bad, tmp_path / "bad")
    assert not (tmp_path / "bad" / "metrics.jsonl").exists()


COMMAND = """
import sys
sys.path.insert(0, {root!r})
from tests.experiments.test_two_stage import config
from ssa_jax import experiments
experiments.run(config(), sys.argv[1])
"""


def start(folder):
    # one computing thread and one device, as a user's process on a small machine
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", COMMAND.format(root=str(ROOT)), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def numbers(folder):
    """All recorded metrics, and the final summary without its seconds."""
    summary = json.loads((folder / "summary.json").read_text())
    return RunFolder(folder).records(), summary["results"], summary["functions"]


def kill_when(folder, lines, sign):
    """Starts the run and ends it once metrics.jsonl has that many lines; True when it came to that."""
    process, metrics = start(folder), folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= lines:
            process.send_signal(sign)
            break
        time.sleep(0.005)
    process.communicate(timeout=60)
    return process.returncode != 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    process = start(folder)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    return folder


def test_killed_in_both_stages_gives_the_same_numbers(undisturbed, tmp_path):
    folder = tmp_path / "killed"
    total = len(RunFolder(undisturbed).records())
    assert kill_when(folder, 7, signal.SIGKILL)  # stage 1
    assert kill_when(folder, total - 20, signal.SIGTERM)  # stage 2
    assert start(folder).wait(timeout=300) == 0
    assert numbers(folder) == numbers(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
def test_killed_at_random_moments_gives_the_same_numbers(undisturbed, tmp_path, attempt):
    folder, random_numbers = tmp_path / "killed", random.Random(attempt)
    total = len(RunFolder(undisturbed).records())
    for _ in range(4):
        kill_when(folder, random_numbers.randrange(total), random_numbers.choice([signal.SIGKILL, signal.SIGTERM]))
    assert start(folder).wait(timeout=300) == 0
    assert numbers(folder) == numbers(undisturbed)


def test_damaged_checkpoint_is_named_and_what_is_left_is_said(undisturbed, tmp_path):
    import shutil

    folder = tmp_path / "damaged"
    shutil.copytree(undisturbed, folder)
    (latest,) = (folder / "checkpoints" / "stage1_learned-0").glob("20")
    for file in (latest / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"stage1_learned-0/20 can't be read.*Delete that folder"):
        experiments.run(config(), folder)


def test_public_face_runs_the_same_job(tmp_path):
    assert ssa_jax.run is experiments.run
    assert np.isfinite(build.task_of(config()).trivial()["chance"])
