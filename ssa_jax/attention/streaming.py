"""The arithmetic of one block of logits, the same in every backend that goes block by block.

Blocks may lie keys by queries (key axis -2) or queries by keys (key axis -1); what belongs to a query keeps both axes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.scores import LogWeight
from ssa_jax.scores.base import Theta

HIDDEN = -1e30  # log weight of a hidden key: finite, so that differences stay numbers
LOWEST = -1e29  # where running maxima start: exp(HIDDEN - LOWEST) is 0


def masked_log_weights(
    score: LogWeight,
    logits: Float[Array, "..."],
    theta: Theta,
    counts: Float[Array, "..."] | None,
    seen: Bool[Array, "..."] | None,
) -> Float[Array, "..."]:
    """g of the logits, HIDDEN where a key is not seen (None: all are)."""
    log_weights = score.log_weight(logits, theta, counts)
    return log_weights if seen is None else jnp.where(seen, log_weights, HIDDEN)


def start(score: LogWeight, shape: tuple[int, ...], dtype) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Running maximum and sum of a query that has seen no key; "1 + sum" begins with a key of log weight 0."""
    one_more = score.denominator == "1 + sum"
    return jnp.full(shape, 0 if one_more else LOWEST, dtype), jnp.full(shape, float(one_more), dtype)


def step(
    score: LogWeight,
    log_weights: Float[Array, "..."],
    top: Float[Array, "..."],
    total: Float[Array, "..."],
    key_axis: int,
) -> tuple[Float[Array, "..."], Float[Array, "..."] | None, Float[Array, "..."], Float[Array, "..."]]:
    """Weights against the new maximum, what all that was summed before shrinks by (None: nothing), maximum, sum."""
    if score.denominator == "1":
        return jnp.exp(log_weights), None, top, total
    new_top = jnp.maximum(top, log_weights.max(key_axis, keepdims=True))
    weights, shrink = jnp.exp(log_weights - new_top), jnp.exp(top - new_top)
    return weights, shrink, new_top, total * shrink + weights.sum(key_axis, keepdims=True)


def finish(
    score: LogWeight, out: Float[Array, "..."], top: Float[Array, "..."], total: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The output, and the log of the denominator that the backward pass needs."""
    if score.denominator == "1":
        return out, jnp.zeros_like(top)
    alive = total > 0
    total = jnp.where(alive, total, 1)
    # a query that sees no key: exp(g - 1e30) is 0, whatever g the backward pass makes
    return out / total, jnp.where(alive, top + jnp.log(total), -HIDDEN)


def backward(
    score: LogWeight,
    logits: Float[Array, "..."],
    theta: Theta,
    counts: Float[Array, "..."] | None,
    seen: Bool[Array, "..."] | None,
    log_sum: Float[Array, "..."],
    d_weights: Float[Array, "..."],
    delta: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."], Theta]:
    """Weights made again, and the gradients of logits and theta; delta is `row_delta`."""
    weights = jnp.exp(masked_log_weights(score, logits, theta, counts, seen) - log_sum)
    d_logits, d_theta = score.log_weight_vjp(logits, theta, counts, weights * (d_weights - delta))
    return weights, d_logits, d_theta


def row_delta(score: LogWeight, out: Float[Array, "... E"], d_out: Float[Array, "... E"]) -> Float[Array, "..."]:
    """What the denominator takes from every d_weight of a row: sum of weight times d_weight, which is out . d_out."""
    delta = (out.astype(d_out.dtype) * d_out).sum(-1)
    return jnp.zeros_like(delta) if score.denominator == "1" else delta
