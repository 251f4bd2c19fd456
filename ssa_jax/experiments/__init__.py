"""What a user asks for, by name: `run(config, workdir)` is what main calls."""

from pathlib import Path
from typing import Any

from ssa_jax.experiments import build
from ssa_jax.experiments.session import Session
from ssa_jax.experiments.two_stage import train, two_stage
from ssa_jax.registry import no_such

EXPERIMENTS = {"two_stage": two_stage, "train": train}


def run(config: Any, workdir: str | Path, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs `config.experiment` in `workdir` and returns its summary; the same call resumes.

    Raises ValueError before anything compiles when the config cannot be run, or when `workdir` holds another run.
    """
    if config.experiment not in EXPERIMENTS:
        raise no_such("experiment", config.experiment, tuple(EXPERIMENTS))
    build.check(config)
    return EXPERIMENTS[config.experiment](config, Session(config, workdir, overrides or {}))
