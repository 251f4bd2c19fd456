"""Scalable softmax: the logits grow with the log of the number of visible keys (Nakanishi 2025).

g(z) = s log(T) z, T the number of keys that the row sees. Family log-weight. Shift-invariant; scaling the logits
is scaling s. The weight of the largest logit then no longer fades as the context grows. A row that sees one
key gives it weight one.
"""

import dataclasses
from typing import ClassVar, Literal

import jax.numpy as jnp

from ssa_jax.scores.base import LogWeight, shared_or_per_head


@dataclasses.dataclass(frozen=True)
class ScalableSoftmax(LogWeight):
    """Weights T^(s z) / sum T^(s z), s = params['s'], unconstrained as published.

    Args:
      s: start value. The paper's learned values lie near .43; 1 / log T makes it softmax at length T.
      per: one s a 'head', or one a 'layer'.
    """

    name: ClassVar[str] = "ssmax"
    counts_keys: ClassVar[bool] = True
    s: float = 0.43
    per: Literal["head", "layer"] = "head"

    def __post_init__(self):
        shared_or_per_head(self.per, 1)

    @property
    def learnable(self) -> bool:
        return True

    def init(self, heads):
        return {"s": jnp.full(shared_or_per_head(self.per, heads), self.s, jnp.float32)}

    def theta(self, params):
        return params["s"][None]

    def log_weight(self, logits, theta, keys=None):
        return theta[0] * jnp.log(keys) * logits
