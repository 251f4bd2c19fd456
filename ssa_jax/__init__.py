"""Which nonlinearities, and which attention score function, does your data want?

>>> import ssa_jax
>>> "parity" in ssa_jax.tasks.names()
True
"""

import importlib
from typing import Any

__version__ = "0.1.0"
_ROOMS = ("functions", "scores", "attention", "models", "tasks", "training", "evaluation", "report", "experiments")


def __getattr__(name: str) -> Any:
    # rooms load when first asked for, so that looking at a function does not import the whole house
    if name in _ROOMS:
        return importlib.import_module(f"ssa_jax.{name}")
    if name == "attend":
        return importlib.import_module("ssa_jax.attention").attend
    if name == "run":
        return importlib.import_module("ssa_jax.experiments").run
    raise AttributeError(f"module 'ssa_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_ROOMS, "attend", "run", "__version__"])
