"""Distributions over batches with their splits, one interface: `names()`, `get(name, **options)`.

A task is added by writing one file that builds on `Enumerated` or `Generated` and by importing it here.
"""

from ssa_jax.tasks.addition import Addition
from ssa_jax.tasks.base import Batch, Enumerated, Task
from ssa_jax.tasks.copy import Copy
from ssa_jax.tasks.generated import Generated
from ssa_jax.tasks.mano import Mano
from ssa_jax.tasks.modular_addition import ModularAddition
from ssa_jax.tasks.needle import Needle
from ssa_jax.tasks.parentheses import Parentheses
from ssa_jax.tasks.parity import Parity
from ssa_jax.tasks.registry import registry
from ssa_jax.tasks.reverse import Reverse
from ssa_jax.tasks.sort import Sort

names = registry.names
get = registry.get
options = registry.options

__all__ = [
    "Addition", "Batch", "Copy", "Enumerated", "Generated", "Mano", "ModularAddition", "Needle", "Parentheses",
    "Parity", "Reverse", "Sort", "Task", "get", "names", "options",
]  # fmt: skip
