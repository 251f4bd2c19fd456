"""A small finished run folder."""

import pytest

from ssa_jax.evaluation.statistics import mean_ci95
from ssa_jax.report.run_folder import open_run


@pytest.fixture
def summary():
    return {
        "experiment": "two_stage",
        "verdict": "learned reaches 99 % where gelu <does not>",
        "results": {
            "gelu": {
                "test_accuracy": mean_ci95([0.4, 0.5, 0.6]),
                "steps_to_99": mean_ci95([None, None, 300]),
                "learning_rate": mean_ci95([0.003]),
            },
            "learned": {
                "test_accuracy": mean_ci95([0.99, 1.0, 0.98]),
                "steps_to_99": mean_ci95([200, 100, None]),
                "learning_rate": mean_ci95([0.01]),
            },
            "chance": {"test_accuracy": mean_ci95([0.5])},
        },
        "cost": {
            "stage1": {"seconds": 14.2, "model_steps": 12000, "flops": 3.2e12},
            "stage2": {"seconds": 8.0, "model_steps": 24000, "flops": None},
        },
        "environment": {"commit": "unknown", "devices": {"platform": "cpu", "count": 1}},
    }


@pytest.fixture
def finished_run(tmp_path, summary):
    run = open_run(tmp_path / "run", {"seed": 0, "stage1": {"replicas": 8}}, {"stage1.replicas": 8})
    run.write_json("summary.json", summary)
    return run
