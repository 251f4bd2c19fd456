"""Sparsemax: the Euclidean projection of the logits on the probability simplex (Martins & Astudillo 2016).

w = max(0, z - tau), tau such that the row sums to one. Family simplex. Shift-invariant; scaling the logits up
tends to one-hot, down to uniform. A key far enough below the top has weight exactly 0 and no gradient.
"""

import dataclasses
from typing import ClassVar, Literal

from ssa_jax.scores.base import Score
from ssa_jax.scores.entmax import entmax, solver


@dataclasses.dataclass(frozen=True)
class Sparsemax(Score):
    """Projection on the simplex.

    Args:
      by: how tau is found, 'bisection' or 'sort'; see `Entmax`.

    >>> import jax.numpy as jnp
    >>> [f"{weight:.2f}" for weight in Sparsemax().weights(jnp.array([[0.0, 1.0, 1.5]]))[0]]
    ['0.00', '0.25', '0.75']
    """

    name: ClassVar[str] = "sparsemax"
    family: ClassVar[str] = "simplex"
    by: Literal["bisection", "sort"] = "bisection"

    def __post_init__(self):
        solver(self.by, 2.0)

    def masked_weights(self, z, mask, params):
        return entmax(z, mask, 2.0, self.by)
