"""A learned score on the raw logit (Teney et al. 2026, read as a function of q.k): weights proportional to phi(z).

w = phi(z) / sum phi(z), phi a linear spline. Family product: phi may be negative or zero, so there is no log of it.
The denominator keeps its sign and stays 1e-6 away from 0, so rows sum to one unless their sum nearly vanishes.
Multiplying phi by a constant changes nothing; a constant phi, the start, is uniform. No invariance in the logits.
"""

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp

from ssa_jax import functions
from ssa_jax.scores.base import Score, safe_divide, shared_or_per_head
from ssa_jax.scores.feature_map import apply_per_head, repeat_per_head

FLOOR = 1e-6


@dataclasses.dataclass(frozen=True)
class RawSpline(Score):
    """phi(z) / sum phi(z).

    Args:
      function: phi, any scalar function of `ssa_jax.functions`, by name or as built; 'spline' starts constant.
      per: one phi a 'head', or one a 'layer'.
    """

    name: ClassVar[str] = "raw_spline"
    family: ClassVar[str] = "product"
    function: functions.Function | str = "spline"
    per: Literal["head", "layer"] = "head"

    def __post_init__(self):
        shared_or_per_head(self.per, 1)
        if isinstance(self.function, str):
            start = {"init": "constant"} if self.function == "spline" else {}
            object.__setattr__(self, "function", functions.get(self.function, **start))

    @property
    def learnable(self) -> bool:
        return self.function.learnable

    def init(self, heads):
        return repeat_per_head(self.function, shared_or_per_head(self.per, heads))

    def masked_weights(self, z, mask, params):
        products = jnp.where(mask, apply_per_head(self.function, params, z), 0)
        return safe_divide(products, products.sum(-1, keepdims=True), FLOOR)
