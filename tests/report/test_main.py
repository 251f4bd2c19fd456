"""Several runs in one table: what `python -m ssa_jax.report` prints and draws."""

import subprocess
import sys

import jax

from ssa_jax import functions
from ssa_jax.report.run_folder import RunFolder


def run(folder, accuracy):
    value = {"mean": accuracy, "ci95": [None, None], "values": [accuracy]}
    steps = {"mean": None, "ci95": [None, None], "values": [None]}
    summary = {
        "experiment": "two_stage",
        "verdict": "learned wins",
        "results": {"learned": {"test_accuracy": value, "steps_to_99": steps}},
        "cost": {"stage1": {"seconds": 1.0, "model_steps": 10}},
        "environment": {},
    }
    folder.mkdir()
    RunFolder(folder).write_json("summary.json", summary)
    spline = functions.get("spline", knots=4)
    (folder / "functions" / "learned-0").mkdir(parents=True)
    functions.save(folder / "functions" / "learned-0" / "mlp_all", spline, spline.init(jax.random.key(0)))
    return str(folder)


def call(*arguments):
    return subprocess.run([sys.executable, "-m", "ssa_jax.report", *arguments], capture_output=True, text=True)


def test_rows_name_run_and_condition_and_the_picture_is_drawn(tmp_path):
    folders = [run(tmp_path / "parity", 0.75), run(tmp_path / "sums", 0.5)]
    done = call(*folders, "--markdown", f"--picture={tmp_path / 'all.png'}")
    assert done.returncode == 0, done.stderr
    assert "| parity: learned | 0.750 | unreached (0/1) | 10 (1 s) |" in done.stdout
    assert "| sums: learned | 0.500 |" in done.stdout
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_folder_without_a_summary_is_named(tmp_path):
    done = call(str(tmp_path))
    assert done.returncode == 2 and str(tmp_path) in done.stderr
