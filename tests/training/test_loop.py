"""The loop: records as the design lays them out, one chunk late but whole; a replica that fails is named."""

import logging

import jax
import numpy as np
import pytest

from ssa_jax.training.loop import Stage, run_stage
from ssa_jax.training.mesh import make_mesh
from ssa_jax.training.state import make_replicas
from tests.training import small


class Notebook:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.records, self.told, self.rewound = [], [], []

    def record(self, record):
        self.records.append(record)

    def rewind(self, stage, step):
        self.rewound.append((stage, step))
        self.records = [r for r in self.records if r["step"] <= step]

    def progress(self, stage, step, steps, numbers):
        self.told.append((step, steps))


def stage(replicas, steps=20, **changes):
    fields = dict(
        name="search",
        model=small.model(),
        task=small.TASK,
        plan=small.plan(),
        replicas=replicas,
        steps=steps,
        eval_every=5,
        eval_splits=("validation",),
        checkpoint_every=10,
    )
    return Stage(**fields | changes)


def train(the_stage, folder, notebook, devices=1):
    mesh = make_mesh(len(the_stage.replicas.seed), devices=jax.devices()[:devices])
    return run_stage(the_stage, None, mesh, "map", folder, notebook)


def test_failed_replica_is_named_and_its_numbers_are_null(tmp_path, caplog):
    notebook = Notebook()
    with caplog.at_level(logging.WARNING):
        trained = train(stage(make_replicas([7, 8, 9], [3e-3, 1e38, 3e-3])), tmp_path, notebook)
    assert any("replica 1 (seed 8) is not finite at step" in message for message in caplog.messages)
    last = [r for r in notebook.records if r["step"] == 20 and r["split"] == "validation" and r["metric"] == "accuracy"]
    assert [value is None for value in last[0]["values"]] == [False, True, False]
    assert np.isfinite(last[0]["mean"])
    assert np.isfinite(np.asarray(trained.state.arch["mlp_all"]["function"]["values"])).all()


def test_longer_run_resumes_from_the_shorter_one(tmp_path):
    """Ten steps, then the same stage with twenty: bit for bit what twenty at once give."""
    replicas, whole, parts = small.replicas(2), Notebook(), Notebook()
    at_once = train(stage(replicas), tmp_path / "whole", whole)
    train(stage(replicas, steps=10), tmp_path / "parts", parts)
    resumed = train(stage(replicas), tmp_path / "parts", parts)
    assert parts.rewound[-1] == ("search", 10)
    assert parts.records == whole.records
    assert jax.tree.all(jax.tree.map(np.array_equal, *(jax.tree.map(np.asarray, t.state) for t in (at_once, resumed))))
    assert resumed.seconds > 0 and parts.told[-1] == (20, 20)


def test_run_resumes_on_another_number_of_devices(tmp_path):
    replicas, one, two = small.replicas(2), Notebook(), Notebook()
    at_once = train(stage(replicas, steps=10), tmp_path / "one", one)
    train(stage(replicas, steps=5), tmp_path / "two", two)
    resumed = train(stage(replicas, steps=10), tmp_path / "two", two, devices=2)
    knots = [np.asarray(t.state.arch["mlp_all"]["function"]["values"]) for t in (at_once, resumed)]
    np.testing.assert_allclose(*knots, atol=1e-5)
    assert resumed.state.weights["readout"]["kernel"].sharding.num_devices == 2


def test_steps_must_fill_whole_chunks(tmp_path):
    with pytest.raises(ValueError, match="not a multiple of eval_every 5"):
        train(stage(small.replicas(1), steps=12), tmp_path, Notebook())
