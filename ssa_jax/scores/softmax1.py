"""Softmax with one more in the denominator, so that a head may attend to nothing (Miller 2023, "off by one").

w = exp(z) / (1 + sum exp(z)). Family log-weight. Rows sum to less than one. Neither shift- nor scale-invariant:
a row shifted up tends to softmax, shifted down to zero.
"""

import dataclasses
from typing import ClassVar

from ssa_jax.scores.base import LogWeight


@dataclasses.dataclass(frozen=True)
class Softmax1(LogWeight):
    """Softmax over the visible keys and one more with logit 0, whose weight is dropped."""

    name: ClassVar[str] = "softmax1"
    denominator: ClassVar[str] = "1 + sum"
    sums_to_one: ClassVar[bool] = False

    def log_weight(self, logits, theta, keys=None):
        return logits
