"""Self-adjusting softmax: softmax times the logit, so that its gradient does not vanish (Zheng et al. 2025).

'plain': w = z softmax(z). 'ranged': w = (z - min(z_min, 0)) / (max(z_max, 0) - min(z_min, 0)) softmax(z), extremes over
the visible keys of the row. Family product. Rows do not sum to one; plain weights may be negative. Neither is
shift-invariant; once a row holds both signs the ranged factor does not change when the row is scaled.
"""

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp

from ssa_jax.scores.base import Score, masked_softmax


@dataclasses.dataclass(frozen=True)
class SASoftmax(Score):
    """z softmax(z), or softmax(z) times z rescaled into [0, 1] where form='ranged'. All-zero logits give zeros."""

    name: ClassVar[str] = "sa_softmax"
    family: ClassVar[str] = "product"
    sums_to_one: ClassVar[bool] = False
    form: Literal["plain", "ranged"] = "ranged"

    def __post_init__(self):
        if self.form not in ("plain", "ranged"):
            raise ValueError(f"form={self.form!r} must be 'plain' or 'ranged'.")

    def masked_weights(self, z, mask, params):
        softmax = masked_softmax(z, mask)
        if self.form == "plain":
            return z * softmax
        low = jnp.min(z, axis=-1, keepdims=True, where=mask, initial=0)
        high = jnp.max(z, axis=-1, keepdims=True, where=mask, initial=0)
        span = high - low
        return jnp.where(mask, z - low, 0) / jnp.where(span > 0, span, 1) * softmax
