"""Softmax with a temperature, fixed or learned per head.

g(z) = z / t. Family log-weight. Shift-invariant; scaling the logits is scaling 1 / t. t -> 0 is one-hot,
t -> infinity uniform, t = 1 softmax.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax.numpy as jnp

from ssa_jax.scores.base import LogWeight, shared_or_per_head


@dataclasses.dataclass(frozen=True)
class Temperature(LogWeight):
    """Weights exp(z / t) / sum exp(z / t), t = exp(params['log_t']) > 0 where learned.

    Args:
      temperature: the fixed value, or the start.
      learn: whether log t is learned.
      per: one temperature a 'head', or one a 'layer'.
    """

    name: ClassVar[str] = "temperature"
    temperature: float = 1.0
    learn: bool = True
    per: Literal["head", "layer"] = "head"

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be positive.")
        shared_or_per_head(self.per, 1)

    @property
    def learnable(self) -> bool:
        return self.learn

    def init(self, heads):
        if not self.learn:
            return {}
        return {"log_t": jnp.full(shared_or_per_head(self.per, heads), math.log(self.temperature), jnp.float32)}

    def theta(self, params):
        return jnp.exp(-params["log_t"])[None] if self.learn else jnp.full((1, 1), 1 / self.temperature)

    def log_weight(self, logits, theta, keys=None):
        return theta[0] * logits
