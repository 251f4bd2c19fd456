"""alpha-entmax: sparse weights between softmax (alpha -> 1) and sparsemax (alpha = 2) (Peters et al. 2019).

w = max(0, (alpha - 1) z - tau)^(1 / (alpha - 1)), tau such that the row sums to one. Family simplex. Shift-invariant;
scaling the logits up tends to one-hot, down to uniform. Zero weights get no gradient. The gradient by alpha is that
of Correia et al. 2019, written so that it stays exact as alpha -> 1.
"""

import dataclasses
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.scores.base import Score, shared_or_per_head

OUTSIDE = -1e30  # below every threshold, and finite so that differences stay numbers


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def entmax_by_sort(z: Float[Array, "... S"], mask: Bool[Array, "..."], alpha: float) -> Float[Array, "... S"]:
    """Exact alpha-entmax over the last axis for alpha 1.5 or 2; masked keys and rows without keys give 0."""
    x = _centred(z, mask, alpha - 1)
    ordered = jax.lax.rev(jnp.sort(x, axis=-1), (x.ndim - 1,))
    count = jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    # masked entries would swamp the running sums; they end up behind the support, where no sum is read
    ordered_or_low = jnp.maximum(ordered, -2.0)
    mean = jnp.cumsum(ordered_or_low, axis=-1) / count
    if alpha == 2:
        threshold = mean - 1 / count
    else:
        spread = jnp.cumsum(ordered_or_low**2, axis=-1) - count * mean**2
        threshold = mean - jnp.sqrt(jnp.maximum((1 - spread) / count, 0))
    support = jnp.sum(threshold <= ordered, axis=-1, keepdims=True).clip(1)
    tau = jnp.take_along_axis(threshold, support - 1, axis=-1)
    return _from_threshold(x, tau, mask, alpha - 1)


def _sort_forward(z, mask, alpha):
    weights = entmax_by_sort(z, mask, alpha)
    return weights, weights


def _sort_backward(alpha, weights, cotangent):
    return _gradient_by_logits(weights, cotangent, alpha - 1), None


entmax_by_sort.defvjp(_sort_forward, _sort_backward)


@jax.custom_vjp
def entmax_by_bisection(
    z: Float[Array, "... S"], mask: Bool[Array, "..."], alpha: Float[Array, "..."]
) -> Float[Array, "... S"]:
    """alpha-entmax over the last axis for any 1 < alpha <= 2 that broadcasts against z, and its gradient by alpha."""
    step = alpha - 1
    x = _centred(z, mask, step)
    visible = jnp.broadcast_to(mask, x.shape).sum(-1, keepdims=True).clip(1).astype(x.dtype)
    # one key at the top already reaches a sum of 1 with tau = -1; with tau = -(1/T)^(alpha-1) T keys at most do
    low, high = -jnp.ones_like(visible + step), -(visible**-step)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        enough = _power(x - middle, step, mask).sum(-1, keepdims=True) >= 1
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    halvings = jnp.finfo(x.dtype).nmant + 2
    low, high = jax.lax.fori_loop(0, halvings, halve, (low, jnp.broadcast_to(high, low.shape)))
    return _from_threshold(x, low, mask, step)


def _bisection_forward(z, mask, alpha):
    weights = entmax_by_bisection(z, mask, alpha)
    return weights, (weights, alpha)


def _bisection_backward(residuals, cotangent):
    weights, alpha = residuals
    slope = _slope_by_alpha(weights, alpha - 1)
    d_alpha = _sum_to(cotangent * slope, alpha.shape)
    return _gradient_by_logits(weights, cotangent, alpha - 1), None, d_alpha


entmax_by_bisection.defvjp(_bisection_forward, _bisection_backward)


def _centred(z, mask, step):
    """(alpha - 1) z with the largest visible entry moved to 0, and OUTSIDE where masked."""
    top = jnp.max(z, axis=-1, keepdims=True, where=mask, initial=-jnp.inf)
    return jnp.where(mask, step * (z - jnp.where(jnp.isfinite(top), top, 0)), OUTSIDE)


def _power(above, step, mask):
    inside = mask & (above > 0)
    return jnp.where(inside, jnp.where(inside, above, 1) ** (1 / step), 0)


def _from_threshold(x, tau, mask, step):
    weights = _power(x - tau, step, mask)
    total = weights.sum(-1, keepdims=True)
    # what rounding left of the threshold's error
    return weights / jnp.where(total > 0, total, 1)


def _gradient_by_logits(weights, cotangent, step):
    inside = weights > 0
    slope = jnp.where(inside, jnp.where(inside, weights, 1) ** (1 - step), 0)
    total = slope.sum(-1, keepdims=True)
    mean = (slope * cotangent).sum(-1, keepdims=True) / jnp.where(total > 0, total, 1)
    return slope * (cotangent - mean)


def _slope_by_alpha(weights, step):
    """dw / dalpha. With h = -w log w and r = w (w^-e - 1 + e log w) / e^2, e = alpha - 1:

    (w R - r + e (h R - r H)) / (1 + e H + e^2 R), capitals being row sums. The published form
    (w - w~) / e^2 + (h - w~ H) / e cancels to nothing in float32 when e is small; this one does not.
    """
    inside = weights > 0
    log = jnp.log(jnp.where(inside, weights, 1))
    h = -weights * log
    r = weights * log**2 * _second_remainder(-step * log)
    sum_h, sum_r = h.sum(-1, keepdims=True), r.sum(-1, keepdims=True)
    return (weights * sum_r - r + step * (h * sum_r - r * sum_h)) / (1 + step * sum_h + step**2 * sum_r)


def _second_remainder(x):
    """(exp(x) - 1 - x) / x^2 for x >= 0."""
    small = x < 0.1
    safe = jnp.where(small, 1, x)
    series = 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040))))
    return jnp.where(small, series, (jnp.expm1(safe) - safe) / safe**2)


def _sum_to(x, shape):
    """Sums x over the axes along which `shape` was broadcast to it."""
    extra = x.ndim - len(shape)
    x = x.sum(tuple(range(extra)))
    return x.sum(tuple(i for i, size in enumerate(shape) if size == 1), keepdims=True)


def solver(by: str, alpha: float | None) -> str:
    """`by`, checked against alpha, which is None where learned."""
    if by not in ("bisection", "sort"):
        raise ValueError(f"by={by!r} must be 'bisection' or 'sort'.")
    if by == "sort" and alpha not in (1.5, 2.0):
        raise ValueError(f"alpha={alpha}: only 1.5 and 2 can be solved by sort; use by='bisection'.")
    return by


def entmax(z: Float[Array, "... S"], mask: Bool[Array, "..."], alpha: float, by: str) -> Float[Array, "... S"]:
    """alpha-entmax over the last axis for a fixed alpha."""
    if by == "sort":
        return entmax_by_sort(z, mask, alpha)
    return entmax_by_bisection(z, mask, jnp.asarray(alpha, z.dtype))


@dataclasses.dataclass(frozen=True)
class Entmax(Score):
    """alpha-entmax, alpha fixed or learned as 1 + sigmoid(params['u']).

    Args:
      alpha: the fixed value, 1 < alpha <= 2, or the start of a learned one, 1 < alpha < 2.
      learn: whether alpha is learned.
      per: one alpha a 'head', or one a 'layer'.
      by: 'sort' is exact for a fixed alpha of 1.5 or 2. 'bisection' takes any alpha and halves until the dtype is
        exhausted: in float32 its error is the smaller one, and at 1,024 keys it takes 1/40 of the time on a CPU.

    Raises:
      ValueError: alpha outside these bounds.
    """

    name: ClassVar[str] = "entmax"
    family: ClassVar[str] = "simplex"
    alpha: float = 1.5
    learn: bool = False
    per: Literal["head", "layer"] = "head"
    by: Literal["bisection", "sort"] = "bisection"

    def __post_init__(self):
        shared_or_per_head(self.per, 1)
        solver(self.by, None if self.learn else self.alpha)
        if not 1 < self.alpha <= 2 or (self.learn and self.alpha == 2):
            raise ValueError(f"alpha={self.alpha} must lie in (1, 2], below 2 where learned; alpha = 1 is 'softmax'.")

    @property
    def learnable(self) -> bool:
        return self.learn

    def init(self, heads):
        if not self.learn:
            return {}
        start = jnp.log(self.alpha - 1) - jnp.log(2 - self.alpha)
        return {"u": jnp.full(shared_or_per_head(self.per, heads), start, jnp.float32)}

    def masked_weights(self, z, mask, params):
        if self.learn:
            alpha = 1 + jax.nn.sigmoid(params["u"].astype(z.dtype))[:, None, None]
            return entmax_by_bisection(z, mask, alpha)
        return entmax(z, mask, self.alpha, self.by)
