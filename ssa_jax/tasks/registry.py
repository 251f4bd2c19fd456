"""Where a task's file enters its name."""

from ssa_jax.registry import Registry

registry = Registry("task")
