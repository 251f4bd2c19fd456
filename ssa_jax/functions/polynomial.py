"""Chebyshev polynomials: a learned function made smooth and, on a CPU, cheap.

y(x) = sum_k c_k T_k(t), t = (2x - low - high) / (high - low) clipped to [-1, 1]; evaluated by Clenshaw's recurrence.
Source: Teney et al., "Can Transformers Really Do It All?", which replaces learned splines by high-order polynomials.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ssa_jax.functions.activations import to_floating
from ssa_jax.functions.spline import Spline

# points per interval at which a fit is made and judged
SAMPLES = 8
# share of the weight that a fit spreads over all intervals, so that what was never visited stays bounded
SPREAD = 1e-3


@dataclass(frozen=True)
class Polynomial:
    """A polynomial on [low, high], constant outside; it starts as the identity.

    Args:
        degree: at least 1; there are degree + 1 coefficients.
        low, high: the range of the basis, in units of x.

    NaN in x gives NaN. Raises ValueError for a degree below 1 or a range that is not finite low < high.

    >>> square = {"coefficients": jnp.array([0.5, 0.0, 0.5])}  # x^2 = (T_0 + T_2) / 2
    >>> Polynomial(degree=2, low=-1.0, high=1.0).apply(square, jnp.array([0.5, 3.0])).tolist()
    [0.25, 1.0]
    """

    degree: int = 8
    low: float = -4.0
    high: float = 4.0
    name: ClassVar[str] = "polynomial"
    learnable: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.degree, int | np.integer) or isinstance(self.degree, bool) or self.degree < 1:
            raise ValueError(f"A polynomial needs a whole degree, at least 1; got degree={self.degree!r}.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"A polynomial needs finite low < high; got low={self.low!r}, high={self.high!r}.")

    def options(self) -> dict[str, object]:
        """What builds this polynomial again."""
        return asdict(self)

    def init(self, key: PRNGKeyArray) -> dict[str, Float[Array, "N"]]:
        """{'coefficients': float32 [degree + 1]} of y = x. Nothing is random."""
        line = [(self.high + self.low) / 2, (self.high - self.low) / 2]
        return {"coefficients": jnp.asarray(line + [0.0] * (self.degree - 1), jnp.float32)}

    def apply(self, params: dict[str, Float[Array, "N"]], x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The polynomial at x, elementwise, evaluated in at least float32 and returned in x's dtype."""
        x, coefficients = to_floating(x), jnp.asarray(params["coefficients"])
        if coefficients.shape != (self.degree + 1,):
            raise ValueError(f"{self} needs {self.degree + 1} coefficients; got shape {coefficients.shape}.")
        coefficients = coefficients.astype(jnp.result_type(jnp.float32, x, coefficients))
        t = (2 * x.astype(coefficients.dtype) - (self.low + self.high)) / (self.high - self.low)
        return _clenshaw(coefficients, jnp.clip(t, -1, 1)).astype(x.dtype)


# compiled also where the caller is not, as in a notebook; inlined into a caller that is
@partial(jax.jit, inline=True)
def _clenshaw(coefficients, t):
    newer = older = jnp.zeros_like(t)
    for k in range(coefficients.size - 1, 0, -1):
        newer, older = coefficients[k] + 2 * t * newer - older, newer
    return coefficients[0] + t * newer - older


def fit_polynomial(
    function: Spline | Polynomial,
    params: dict[str, Float[Array, "..."]],
    support: Mapping[str, Float[Array, "..."]] | Float[Array, "K-1"] | None,
    degree: int,
) -> tuple[Polynomial, dict[str, Float[Array, "N"]], float]:
    """The least-squares polynomial on the function's range, weighted by how often each interval was visited.

    Args:
        function, params: what is approximated, usually a learned spline.
        support: from `Spline.support` (or its counts): visits per interval. None weights all intervals alike.
        degree: of the polynomial.

    Returns the polynomial, its params, and its relative error: RMS residual over RMS of the function, both weighted by
    the support. A thousandth of the fit's weight is spread evenly, which the error does not count.

    Raises ValueError for per-channel splines, and for counts that are empty, negative or all zero, or that do not fit
    the knots.

    >>> line = Spline(knots=9, init="identity")
    >>> _, params, error = fit_polynomial(line, line.init(None), None, degree=3)
    >>> [f"{abs(c):.3f}" for c in params["coefficients"]], error < 1e-6
    (['0.000', '4.000', '0.000', '0.000'], True)
    """
    if getattr(function, "channels", None) is not None:
        raise ValueError(f"Polynomials are fitted to one function; {function} has {function.channels} channels.")
    polynomial = Polynomial(degree, function.low, function.high)
    counts = support["counts"] if isinstance(support, Mapping) else support
    intervals = getattr(function, "knots", degree + 2) - 1
    counts = np.ones(intervals) if counts is None else np.asarray(counts, np.float64)
    if counts.ndim != 1 or (hasattr(function, "knots") and counts.size != intervals):
        raise ValueError(f"{function} needs a count for each of its {intervals} intervals; got shape {counts.shape}.")
    if not (np.isfinite(counts).all() and (counts >= 0).all() and counts.sum() > 0):
        raise ValueError("A fit needs counts that are finite, not negative, and not all zero.")

    t = (np.arange(counts.size * SAMPLES) + 0.5) / (counts.size * SAMPLES) * 2 - 1
    x = (function.low + function.high + t * (function.high - function.low)) / 2
    target = np.asarray(function.apply(params, x.astype(np.float32)), np.float64)
    weights = np.repeat(counts / counts.sum(), SAMPLES) / SAMPLES
    basis = np.polynomial.chebyshev.chebvander(t, degree)
    root = np.sqrt((1 - SPREAD) * weights + SPREAD / weights.size)
    coefficients = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)[0].astype(np.float32)

    residual = math.sqrt(weights @ (target - basis @ coefficients) ** 2)
    size = math.sqrt(weights @ target**2)
    error = residual / size if size > 0 else (0.0 if residual == 0 else math.inf)
    return polynomial, {"coefficients": jnp.asarray(coefficients)}, error
