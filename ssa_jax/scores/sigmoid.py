"""Sigmoid attention: every key is weighed by itself (Ramapuram et al. 2024).

w = 1 / (1 + exp(-(z - log T))), T the number of keys that the row sees. Family log-weight, not normalised:
at z = 0 a row sums to T / (T + 1), elsewhere to anything between 0 and T. Neither shift- nor scale-invariant.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssa_jax.scores.base import LogWeight


@jax.custom_jvp
def log_sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 / (1 + exp(-x))) without overflow."""
    return jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


@log_sigmoid.defjvp
def _(primals, tangents):
    (x,), (d_x,) = primals, tangents
    # autodiff of minimum and abs has the wrong slope at 0
    return log_sigmoid(x), d_x * jnp.exp(log_sigmoid(-x))


@dataclasses.dataclass(frozen=True)
class Sigmoid(LogWeight):
    """Weights sigmoid(z - log T): g(z) = log sigmoid(z - log T), divided by nothing."""

    name: ClassVar[str] = "sigmoid"
    denominator: ClassVar[str] = "1"
    sums_to_one: ClassVar[bool] = False
    counts_keys: ClassVar[bool] = True

    def log_weight(self, logits, theta, keys=None):
        return log_sigmoid(logits - jnp.log(keys))
