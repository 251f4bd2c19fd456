"""The loop of a stage: dispatch chunks of steps, read their metrics one chunk late, save, resume."""

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from ssa_jax.training.checkpoints import Checkpoints
from ssa_jax.training.evaluate import make_evaluate
from ssa_jax.training.mesh import shared_sharding
from ssa_jax.training.preemption import Preempted, Preemption
from ssa_jax.training.state import Replicas, State
from ssa_jax.training.step import Plan, abstract_state, init_state, make_chunk, make_step

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Who keeps what a stage reports. Called with plain Python numbers, one chunk late."""

    def record(self, record: dict[str, Any]) -> None:
        """One line of metrics: stage, step, split, metric, values (one a replica; None where not finite), mean."""

    def rewind(self, stage: str, step: int) -> None:
        """A resumed stage goes on after `step`: forget what was recorded later."""

    def progress(self, stage: str, step: int, steps: int, numbers: dict[str, float]) -> None:
        """Where the stage is."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One training run of R replicas: what it trains, how long, and what it watches."""

    name: str
    model: Any
    task: Any
    plan: Plan
    replicas: Replicas
    steps: int
    eval_every: int
    eval_splits: tuple[str, ...]
    checkpoint_every: int
    roughness: Callable | None = None


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a stage leaves: its final state and the seconds of training over all its sessions."""

    state: State
    seconds: float


def run_stage(
    stage: Stage, arch: Any, mesh: Mesh, mapping: str, directory: Path, observer: Observer, keep: int = 1
) -> Trained:
    """Trains a stage to its end, or resumes it; a finished stage returns at once.

    Raises Preempted after saving when the job is asked to end.
    """
    if stage.steps % stage.eval_every:
        raise ValueError(f"steps {stage.steps} is not a multiple of eval_every {stage.eval_every}.")
    replicas = jax.device_put(stage.replicas, shared_sharding(mesh))
    fresh = init_state(stage.model, stage.task, stage.plan, replicas, mesh, mapping, arch)
    with Checkpoints(directory, keep) as checkpoints, Preemption() as preemption:
        restored = checkpoints.restore(abstract_state(fresh, mesh))
        state, meta = restored or (fresh(), {"seconds": 0.0})
        start = int(state.step)
        observer.rewind(stage.name, start if restored else -1)
        if start >= stage.steps:
            return Trained(state, meta["seconds"])
        if start:
            log.info("%s resumes at step %d of %d", stage.name, start, stage.steps)
        step = make_step(stage.model, stage.task, stage.plan, mesh, mapping, stage.roughness)
        chunk = make_chunk(step, stage.eval_every, mesh)
        evaluations = {
            split: make_evaluate(stage.model, stage.task, split, mesh, mapping, stage.plan.stacked_arch)
            for split in stage.eval_splits
        }
        began, waiting = time.perf_counter(), None
        reader = _Reader(stage, observer)
        for at in range(start + stage.eval_every, stage.steps + 1, stage.eval_every):
            state, numbers = chunk(state, replicas)
            measured = {split: evaluate(state, replicas) for split, evaluate in evaluations.items()}
            if waiting:
                reader.read(*waiting)
            waiting = (at, numbers, measured)
            stop = preemption.requested(at)
            if at == stage.steps or at % stage.checkpoint_every == 0 or stop:
                reader.read(*waiting)  # what a checkpoint has seen is on record before it exists
                waiting = None
                seconds = meta["seconds"] + time.perf_counter() - began
                checkpoints.save(at, state, {"seconds": seconds}, reader.score)
            if stop:
                checkpoints.wait()
                raise Preempted(f"{stage.name} was asked to end and saved step {at}; the same command resumes.")
        return Trained(state, seconds)


class _Reader:
    """Turns device numbers of a chunk into records, reports replicas that fail, and tells the progress."""

    def __init__(self, stage: Stage, observer: Observer):
        self.stage, self.observer = stage, observer
        self.seeds = np.asarray(stage.replicas.seed)
        self.failed: set[int] = set()
        self.score = float("nan")

    def read(self, at: int, numbers: dict[str, Any], measured: dict[str, dict[str, Any]]) -> None:
        numbers, measured = jax.device_get((numbers, measured))
        for replica in np.flatnonzero(numbers["failed_at"] >= 0):
            if replica not in self.failed:
                self.failed.add(int(replica))
                log.warning(
                    "%s: replica %d (seed %d) is not finite at step %d; the others go on without it",
                    *(self.stage.name, replica, self.seeds[replica], numbers["failed_at"][replica]),
                )
        healthy = numbers.pop("failed_at") < 0
        for metrics in measured.values():  # what the chunk's last update broke shows in its evaluation only
            healthy &= np.isfinite(metrics["loss"])
        self.failed &= set(np.flatnonzero(~healthy).tolist())  # a re-initialised replica is well again
        for split, metrics in {"train": numbers, **measured}.items():
            for metric, values in metrics.items():
                self._record(at, split, metric, np.where(healthy, values, np.nan))
        if self.stage.eval_splits:
            self.score = _mean(np.where(healthy, measured[self.stage.eval_splits[0]]["accuracy"], np.nan))
        told = {"loss": _mean(numbers["loss"]), "accuracy": self.score}
        self.observer.progress(self.stage.name, at, self.stage.steps, told)

    def _record(self, at: int, split: str, metric: str, values: np.ndarray) -> None:
        plain = [float(v) if np.isfinite(v) else None for v in values]
        mean = _mean(values)
        self.observer.record(
            {
                "stage": self.stage.name,
                "step": at,
                "split": split,
                "metric": metric,
                "values": plain,
                "mean": mean if np.isfinite(mean) else None,
            }
        )


def _mean(values: np.ndarray) -> float:
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
