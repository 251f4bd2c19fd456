"""The main job from the outside: a folder with everything, the same numbers after kills, bad input refused."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import ssa_jax
from configs import default
from ssa_jax import experiments, functions
from ssa_jax.evaluation import statistics
from ssa_jax.experiments import build, judge
from ssa_jax.experiments.two_stage import _estimates
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
        ("variants", {"a": {"stage1": {"optimizer": {"wieght_decay": 0.0}}}}, "weight_decay"),
        ("variants", {"a": {"stage2": {"steps": 10}}}, "stage2"),
        ("variants", {"gelu": {}}, "gelu"),
        ("variants", {"a/b": {}}, "a/b"),
        ("targets", {"same": {"stage1": {"steps": 10}}}, "stage1"),
        ("targets", {}, "targets is empty"),
        ("baselines", ("spline",), "spline"),
        ("functions.mlp", {"name": "polynomial"}, "cannot be searched"),
        ("functions.mlp", {"name": "gelu"}, "nothing to learn"),
        ("stage1.seeds", (), "stage1.seeds is empty"),
        ("stage1.seeds", (0, 0), "twice"),
        ("stage1.seeds", (100,), "first_seed"),
        ("stage1.seeds", (3_000_000,), "stage1.seeds 3000000"),
        ("stage2.learning_rates", (1e-2, 1e-2), "twice"),
        ("checkpoint_every", 0, "checkpoint_every 0"),
        ("threshold", 1.5, "threshold 1.5"),
        ("replica_mapping", "pmap", "vmap"),
        ("mesh.data", 3, "mesh.data 3"),
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
    assert not (tmp_path / "bad").exists()


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
    folder = tmp_path / "damaged"
    shutil.copytree(undisturbed, folder)
    (latest,) = (folder / "checkpoints" / "stage1" / "learned-0").glob("20")
    for file in (latest / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"stage1/learned-0/20 can't be read.*Delete that folder"):
        experiments.run(config(), folder)


def test_public_face_is_what_main_calls():
    assert ssa_jax.run is experiments.run


def test_missing_function_file_is_named(tmp_path):
    small = config()
    small.functions.load = "/nowhere/at/all.json"
    with pytest.raises(ValueError, match=r"/nowhere/at/all\.json"):
        experiments.run(small, tmp_path / "bad")


def test_another_runs_checkpoints_are_not_adopted(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match=r"checkpoints of a run without config\.json"):
        experiments.run(config(), tmp_path)


def test_variants_are_searched_with_their_own_seeds_and_cost(tmp_path):
    variants = {"learned": {}, "joint": {"stage1": {"mode": "joint", "seeds": (3, 4)}}}
    summary = experiments.run(config(variants=variants), tmp_path / "variants")
    assert len(summary["results"]["learned"]["test_accuracy"]["values"]) == 2
    assert len(summary["results"]["joint"]["test_accuracy"]["values"]) == 4
    assert summary["cost"]["stage1"]["model_steps"] == 40 and summary["cost"]["stage1 joint"]["model_steps"] == 80


def test_score_function_as_architecture_is_searched_frozen_and_kept(tmp_path):
    small = config(baselines=("gelu",))
    small.model = default.transformer(width=8, heads=2, hidden=8, score="ssa", score_in="arch")
    summary = experiments.run(small, tmp_path / "ssa")
    assert {"b", "n"} <= summary["functions"]["learned-0"]["score_all"].keys()
    assert (tmp_path / "ssa" / "scores" / "learned-0" / "score_all.json").exists()
    assert len(summary["results"]["gelu"]["test_accuracy"]["values"]) == 2


class Recorded:
    """A session that has recorded given accuracies [splits][steps, rates x seeds]."""

    def __init__(self, accuracies):
        self.accuracies = accuracies

    def history(self, stage, split, metric):
        return np.array([5, 10]), self.accuracies[split]


def test_validation_selects_the_learning_rate_and_the_best_baseline():
    """The first rate is better on test, the second on validation: the second is reported."""
    small = config()
    small.stage2.learning_rates = (1e-3, 1e-2)
    better, worse = np.full((2, 2), 0.9), np.full((2, 2), 0.6)
    session = Recorded({"test": np.hstack([better, worse]), "validation": np.hstack([worse, better])})
    stage = types.SimpleNamespace(
        name="stage2/same/gelu", task=build.task_of(small), eval_splits=("validation", "test")
    )
    chosen = judge._condition(session, stage, small, (1, 2, 2), 0)
    assert chosen.learning_rates == [1e-2]
    assert chosen.metrics["test_accuracy"] == [0.6, 0.6]
    assert chosen.standing()[0] == 0.9


def test_interval_of_several_searches_is_over_fresh_seeds():
    """Two searches judged on the same two seeds: two independent values, not four."""
    metrics = {"test_accuracy": [0.5, 0.9, 0.7, 0.9]}
    curve = np.zeros((1, 4))
    condition = judge.Condition(metrics, [1e-3, 1e-3], {}, np.array([5]), curve, curve)
    found = _estimates(condition)["test_accuracy"]
    assert found["mean"] == pytest.approx(0.75) and len(found["values"]) == 4
    assert found["ci95"] == statistics.mean_ci95([0.6, 0.9])["ci95"]


def test_lost_records_of_a_trained_stage_are_named(finished, tmp_path):
    folder = tmp_path / "lost"
    shutil.copytree(finished[0], folder)
    kept = [r for r in RunFolder(folder).records() if r["stage"] != "stage2/same/gelu"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept))
    with pytest.raises(ValueError, match=r"lacks the records of stage2/same/gelu.*Delete"):
        experiments.run(config(targets=TARGETS), folder)
