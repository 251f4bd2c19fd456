"""Softmax: the weights of Vaswani et al. 2017.

g(z) = z. Family log-weight. Adding a constant to a row changes nothing; multiplying a row by lambda
sharpens it exponentially, to one-hot as lambda grows and to uniform at 0.
"""

import dataclasses
from typing import ClassVar

from ssa_jax.scores.base import LogWeight


@dataclasses.dataclass(frozen=True)
class Softmax(LogWeight):
    """Weights exp(z) / sum exp(z).

    >>> import jax.numpy as jnp
    >>> [f"{weight:.2f}" for weight in Softmax().weights(jnp.array([[0.0, 1.0, 2.0]]))[0]]
    ['0.09', '0.24', '0.67']
    """

    name: ClassVar[str] = "softmax"

    def log_weight(self, logits, theta, keys=None):
        return logits
