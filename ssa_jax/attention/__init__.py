"""How a score function is applied: `attend`, one function for every family, mask and backend."""

from ssa_jax.attention.api import BACKENDS, Choice, attend, choose_backend
from ssa_jax.attention.dense import attention_weights

__all__ = ["BACKENDS", "Choice", "attend", "attention_weights", "choose_backend"]
