"""Kernel attention: weights proportional to phi(q).phi(k), which linear time can run.

These members need queries and keys. `features` is what attention uses, dense or in linear time; `weights` takes
z = products of features in place of logits, for the analysis of single rows.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ssa_jax.scores.base import Params, Score, safe_divide

FLOOR = 1e-6
"""The smallest denominator, as cosFormer publishes it."""


@dataclasses.dataclass(frozen=True)
class Kernel(Score):
    """Weights phi(q_i).phi(k_j) / sum_j phi(q_i).phi(k_j), one feature map for queries and keys."""

    family: ClassVar[str] = "kernel"

    def features(
        self, x: Float[Array, "... H T E"], params: Params, length: int, positions: Int[Array, " T"] | None = None
    ) -> Float[Array, "... H T F"]:
        """phi of queries or keys at `positions` (0 to T - 1 by default) in a context of `length` tokens."""
        raise NotImplementedError

    def products_to_weights(
        self, products: Float[Array, "... T S"], mask: Bool[Array, "..."]
    ) -> Float[Array, "... T S"]:
        """Masks and normalises phi(q).phi(k); the denominator keeps its sign and stays away from 0."""
        products = jnp.where(mask, products, 0)
        return safe_divide(products, products.sum(-1, keepdims=True), FLOOR)

    def masked_weights(self, z, mask, params):
        return self.products_to_weights(z, mask)
