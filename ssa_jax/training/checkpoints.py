"""Checkpoints of one stage by orbax: asynchronous, atomic, the latest kept beside the best; the only module that
knows orbax."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one stage, in one folder; use as a context manager so that saves finish.

    A save copies the state and returns; the write goes on beside training. What is on disk is whole: a kill leaves
    the checkpoint before.
    """

    def __init__(self, directory: Path, keep: int = 1):
        policy = preservation_policy.AnyPreservationPolicy(
            [
                preservation_policy.LatestN(n=keep),
                preservation_policy.BestN(get_metric_fn=lambda metrics: metrics["score"], n=1),
            ]
        )
        self.directory = Path(directory).absolute()
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=True)
        try:
            self.manager = ocp.CheckpointManager(self.directory, options=options)
        except OSError as error:
            raise OSError(f"Checkpoints can't be kept in {self.directory}: {error}") from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: Any) -> None:
        self.manager.close()

    def save(self, step: int, state: Any, meta: dict[str, Any], score: float) -> None:
        """Saves `state` and `meta` (JSON) as `step`; `score` is what the best checkpoint has most of."""
        copy = jax.tree.map(jnp.copy, state)  # the next step donates the original while the write goes on
        score = score if score == score else -1e30
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(copy), meta=ocp.args.JsonSave(meta))
        try:
            self.manager.save(step, args=arguments, metrics={"score": score}, force=True)
        except OSError as error:
            raise OSError(
                f"Checkpoint {step} can't be written to {self.directory}: {error}. Earlier ones are whole."
            ) from error

    def wait(self) -> None:
        """Returns when the last save is on disk."""
        self.manager.wait_until_finished()

    def restore(self, like: Any, step: int | None = None) -> tuple[Any, dict[str, Any]] | None:
        """The latest (state, meta), or that of `step`; None where nothing was saved.

        `like` is a tree of jax.ShapeDtypeStruct with shardings. ValueError names a checkpoint that can't be read
        and what is left.
        """
        step = self.manager.latest_step() if step is None else step
        if step is None:
            return None
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(like), meta=ocp.args.JsonRestore())
        try:
            restored = self.manager.restore(step, args=arguments)
        except (PermissionError, MemoryError):
            raise  # nothing is wrong with the checkpoint
        except Exception as error:  # orbax raises many kinds for a damaged folder
            others = [s for s in self.manager.all_steps() if s != step]
            raise ValueError(
                f"Checkpoint {self.directory / str(step)} can't be read ({type(error).__name__}: {str(error)[:200]}). "
                f"Delete that folder to resume from {f'step {max(others)}' if others else 'the start of the stage'}."
            ) from error
        return restored["state"], restored["meta"]
