"""Being told to stop: SIGTERM on one host, the sync point of all hosts where JAX is distributed."""

import signal
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils


class Preempted(SystemExit):
    """Training stopped on request with everything saved; the same command resumes. Exit status 143 (128 + SIGTERM)."""

    def __init__(self, message: str):
        super().__init__(143)
        self.message = message


class Preemption:
    """While open, `requested(step)` says whether the job was asked to end."""

    def __enter__(self) -> "Preemption":
        self._asked = False
        self._distributed = jax.process_count() > 1
        if not self._distributed:
            self._former = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._distributed:
            signal.signal(signal.SIGTERM, self._former)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True

    def requested(self, step: int) -> bool:
        """True once SIGTERM came (to any host); all hosts ask at the same steps."""
        return multihost_utils.reached_preemption_sync_point(step) if self._distributed else self._asked
