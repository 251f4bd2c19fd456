"""A learned score in log space: weights proportional to exp(spline(z)), positive by construction.

g is a linear spline, its values at fixed knots are learned (method of Teney et al. 2026, applied to the log of the
attention kernel). Family log-weight. No invariance in general. Limits: values on the line y = x with linear
extrapolation are softmax, constant values are uniform.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssa_jax import functions
from ssa_jax.scores.base import LogWeight, shared_or_per_head
from ssa_jax.scores.feature_map import apply_per_head, repeat_per_head


@jax.custom_jvp
def spline_by_ramps(place: Float[Array, "..."], values: tuple[Float[Array, "..."], ...]) -> Float[Array, "..."]:
    """The linear spline through values[k] at place = k, its end slopes going on beyond both ends.

    A sum over pieces, each its rise times a ramp, for kernels that have no gather.
    """
    return _sum_of_ramps(place, values)


@spline_by_ramps.defjvp
def _(primals, tangents):
    (place, values), (d_place, d_values) = primals, tangents
    # autodiff of a ramp has half a slope at a knot; the spline has that of the piece to its right
    slope = values[1] - values[0]
    for k in range(1, len(values) - 1):
        slope = jnp.where(place >= k, values[k + 1] - values[k], slope)
    return _sum_of_ramps(place, values), slope * d_place + _sum_of_ramps(place, d_values)


def _sum_of_ramps(place, values):
    last = len(values) - 2
    total = values[0]
    for k in range(last + 1):
        ramp = place - k
        ramp = ramp if k == 0 else jnp.maximum(ramp, 0)
        ramp = ramp if k == last else jnp.minimum(ramp, 1)
        total = total + ramp * (values[k + 1] - values[k])
    return total


@dataclasses.dataclass(frozen=True)
class SplineScore(LogWeight):
    """Weights exp(spline(z)) / sum exp(spline(z)).

    Args:
      knots, low, high, extrapolation: as in `functions.get('spline')`.
      start: its `init`; 'identity' with linear extrapolation is softmax.
      per: one spline a 'head', or one a 'layer'.
    """

    name: ClassVar[str] = "spline"
    knots: int = 32
    low: float = -8.0
    high: float = 8.0
    extrapolation: Literal["constant", "linear"] = "linear"
    start: str = "identity"
    per: Literal["head", "layer"] = "head"

    def __post_init__(self):
        shared_or_per_head(self.per, 1)
        self.function  # noqa: B018  an invalid spline must fail here, by name

    @property
    def function(self) -> functions.Spline:
        """The scalar function g, for plots and export."""
        return functions.get(
            "spline",
            knots=self.knots,
            low=self.low,
            high=self.high,
            extrapolation=self.extrapolation,
            init=self.start,
        )

    @property
    def learnable(self) -> bool:
        return True

    def init(self, heads):
        return repeat_per_head(self.function, shared_or_per_head(self.per, heads))

    def theta(self, params):
        return params["values"].T

    def log_weight(self, logits, theta, keys=None):
        if isinstance(theta, tuple):
            inside = jnp.clip(logits, self.low, self.high) if self.extrapolation == "constant" else logits
            return spline_by_ramps((inside - self.low) * ((self.knots - 1) / (self.high - self.low)), theta)
        if theta.ndim == 1:
            return self.function.apply({"values": theta}, logits)
        return apply_per_head(self.function, {"values": theta.reshape(self.knots, -1).T}, logits)
