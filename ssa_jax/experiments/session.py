"""A run in progress: its folder, its mesh, what its stages report and cost."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ssa_jax.evaluation import statistics
from ssa_jax.report.progress import Progress
from ssa_jax.report.run_folder import RunFolder, open_run, write_atomic
from ssa_jax.training import loop, mesh, step
from ssa_jax.training.loop import Stage, Trained

log = logging.getLogger(__name__)


class Session:
    """What all experiments share; the observer of their stages."""

    def __init__(self, config: Any, workdir: str | Path, overrides: dict[str, Any]):
        self.config = config
        self.folder: RunFolder = open_run(workdir, config.to_dict(), overrides)
        self.mapping = mesh.resolve_mapping(config.replica_mapping)
        self.costs: dict[str, dict[str, float]] = {}

    def train(self, stage: Stage, arch: Any, cost: str) -> Trained:
        """Runs or resumes a stage; its cost is added to `cost` in the summary."""
        here = mesh.make_mesh(len(stage.replicas.seed), self.config.mesh.data, self.config.mesh.model)
        directory = self.folder.path / "checkpoints" / stage.name
        overview = stage.model.overview(step.example_batch(stage.task))
        write_atomic(self.folder.path / "parameters" / f"{stage.name}.txt", overview)
        with Progress(stage.name, stage.steps) as self._line:
            trained = loop.run_stage(stage, arch, here, self.mapping, directory, self)
        if jax.process_count() > 1:  # process 0 writes the records that all are about to read
            multihost_utils.sync_global_devices(stage.name)
        model_steps = float(np.sum(stage.steps - np.asarray(stage.replicas.start)))
        flops = model_steps * step.step_flops(stage.model, stage.task, stage.plan)
        total = self.costs.setdefault(cost, {"seconds": 0.0, "model_steps": 0.0, "flops": 0.0})
        for unit, amount in {"seconds": trained.seconds, "model_steps": model_steps, "flops": flops}.items():
            total[unit] += amount
        return trained

    def record(self, record: dict[str, Any]) -> None:
        self.folder.log(record)

    def rewind(self, stage: str, step: int) -> None:
        self.folder.truncate(stage, step)

    def progress(self, stage: str, step: int, steps: int, numbers: dict[str, float]) -> None:
        self._line.update(step, numbers["loss"], numbers["accuracy"])

    def history(self, stage: str, split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps [N] and values [N, R] of what a stage recorded; missing values are nan."""
        records = [r for r in self.folder.records(stage) if r["split"] == split and r["metric"] == metric]
        if not records:
            raise ValueError(
                f"{self.folder.metrics} lacks the records of {stage}, which is trained. "
                f"Delete {self.folder.path / 'checkpoints' / stage} to train it again."
            )
        values = [[np.nan if v is None else v for v in r["values"]] for r in records]
        return np.array([r["step"] for r in records]), np.array(values, np.float64)


def estimate(values: Any) -> dict[str, Any]:
    """Mean with 95 % interval of per-replica values, and their median with the unreached as infinite."""
    return statistics.mean_ci95(values) | {"median": statistics.median_with_unreached(values)}
