"""Attention in blocks, for any log-weight score function: plain XLA, memory linear in T, no hidden block computed.

Every block of logits is made, scored and used while it is in cache; a running maximum and sum per query replace the
row. The backward pass makes each block again from the saved log of the denominator. Inside, blocks lie keys by
queries: then all products are plain matrix products, the maximum runs over the outer axis, and what belongs to a
query broadcasts along the inner one, which is what a CPU does fast.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments, combine, pattern_key_counts
from ssa_jax.scores import LogWeight, Params
from ssa_jax.scores.base import compute_dtype

HIDDEN = -1e30  # log weight of a hidden key: finite, so that differences stay numbers
LOWEST = -1e29  # where running maxima start: exp(HIDDEN - LOWEST) is 0
Unit = Any  # index of a batch element and a few of its heads


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static: the score function, the pattern, and how [B, T, H, E] is cut."""

    score: LogWeight
    pattern: Pattern
    queries: int
    keys: int
    block_q: int
    block_k: int
    heads: int
    units_per_batch: int

    @property
    def query_blocks(self) -> int:
        return -(-self.queries // self.block_q)

    @property
    def key_blocks(self) -> int:
        return -(-self.keys // self.block_k)

    def key_range(self, i):
        """First key block that query block i sees, and the one after the last."""
        back, ahead = self.pattern.reach()
        first = 0 if back is None else jnp.maximum(i * self.block_q - back, 0) // self.block_k
        last = (i + 1) * self.block_q - 1
        end = self.key_blocks if ahead is None else (last + ahead) // self.block_k + 1
        return first, jnp.minimum(end, self.key_blocks)

    def query_range(self, j):
        """First query block that sees key block j, and the one after the last."""
        back, ahead = self.pattern.reach()
        first = 0 if ahead is None else jnp.maximum(j * self.block_k - ahead, 0) // self.block_q
        last = (j + 1) * self.block_k - 1
        end = self.query_blocks if back is None else (last + back) // self.block_q + 1
        return first, jnp.minimum(end, self.query_blocks)


def block_sizes(queries: int, keys: int, heads: int) -> tuple[int, int, int]:
    """Block of queries, block of keys, heads at a time."""
    return min(128, -(-queries // 8) * 8), min(128, -(-keys // 8) * 8), 2 if heads % 2 == 0 else 1


def attend(
    q: Float[Array, "B T H E"],
    k: Float[Array, "B S G E"],
    v: Float[Array, "B S G F"],
    score: LogWeight,
    params: Params | None = None,
    pattern: Pattern = NOTHING_HIDDEN,
    segments: Segments | None = None,
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    bias: Float[Array, "#B #H #T #S"] | None = None,
    blocks: tuple[int, int, int] | None = None,
) -> Float[Array, "B T H F"]:
    """As `dense.attend`, in memory linear in T for a fixed block size; only log-weight score functions."""
    heads = q.shape[2]
    block_q, block_k, together = blocks or block_sizes(q.shape[1], k.shape[1], heads)
    plan = Plan(score, pattern, q.shape[1], k.shape[1], block_q, block_k, together, heads // together)
    wide = compute_dtype(q.dtype)
    theta = score.theta(score.checked(params)).astype(wide)
    theta = jnp.broadcast_to(theta, (theta.shape[0], heads))
    k, v = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
    hidden = {"mask": _whole_blocks(mask, plan), "segments": segments and _segment_blocks(segments, plan)}
    bias = bias if bias is None else _whole_blocks(bias.astype(wide), plan)
    out = _attend(plan, q.astype(wide), k.astype(wide), v.astype(wide), theta, bias, hidden)
    return out.astype(v.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q, k, v, theta, bias, hidden):
    return _forward(plan, q, k, v, theta, bias, hidden)[0]


def _forward(plan, q, k, v, theta, bias, hidden):
    q_blocks = _to_blocks(q / math.sqrt(q.shape[-1]), plan, plan.block_q).swapaxes(-1, -2)
    k_blocks = _to_blocks(k, plan, plan.block_k)
    v_blocks = _to_blocks(v, plan, plan.block_k).swapaxes(-1, -2)
    units = q_blocks.shape[0]

    def unit_forward(parts):
        unit, q, k, v, theta = parts
        rows = partial(_query_block_forward, plan, unit, k, v, theta, bias, hidden)
        return jax.lax.map(lambda row: rows(*row), (q, jnp.arange(plan.query_blocks)))

    out, log_sums, keys = jax.lax.map(
        unit_forward, (jnp.arange(units), q_blocks, k_blocks, v_blocks, _unit_theta(theta, plan, units))
    )
    out = _from_blocks(out.swapaxes(-1, -2), plan, plan.queries)
    return out, (q, k, v, theta, bias, hidden, out, log_sums, keys)


def _query_block_forward(plan, unit, k, v, theta, bias, hidden, q, i):
    """One block of queries against every key block that it sees: output, log of the denominator, key counts."""
    score = plan.score
    keys = _key_counts(plan, unit, hidden, i, q.dtype) if score.counts_keys else None

    def step(j, carry):
        out, top, total = carry
        visible, logits = _logits(plan, unit, bias, hidden, k[j], q, i, j)
        log_weights = score.log_weight(logits, theta, keys)
        if visible is not None:
            log_weights = jnp.where(visible, log_weights, HIDDEN)
        if score.denominator == "1":
            return out + v[j] @ jnp.exp(log_weights), top, total
        new_top = jnp.maximum(top, log_weights.max(1, keepdims=True))
        weights, shrink = jnp.exp(log_weights - new_top), jnp.exp(top - new_top)
        return out * shrink + v[j] @ weights, new_top, total * shrink + weights.sum(1, keepdims=True)

    row = (plan.heads, 1, plan.block_q)
    one_more = score.denominator == "1 + sum"
    start = (
        jnp.zeros((plan.heads, v.shape[-2], plan.block_q), q.dtype),
        jnp.full(row, 0 if one_more else LOWEST, q.dtype),
        jnp.full(row, float(one_more), q.dtype),
    )
    first, end = plan.key_range(i)
    out, top, total = jax.lax.fori_loop(first, end, partial(_unless_hidden, plan, unit, hidden, i, None, step), start)
    if score.denominator == "1":
        return out, jnp.zeros(row, q.dtype), keys
    alive = total > 0
    # a query without keys: exp(g - infinity) is 0 for whatever g the backward pass makes
    return out / jnp.where(alive, total, 1), jnp.where(alive, top + jnp.log(jnp.where(alive, total, 1)), -HIDDEN), keys


def _backward(plan, residuals, d_out):
    q, k, v, theta, bias, hidden, out, log_sums, keys = residuals
    delta = jnp.zeros(out.shape[:3], out.dtype) if plan.score.denominator == "1" else (d_out * out).sum(-1)
    q_blocks = _to_blocks(q / math.sqrt(q.shape[-1]), plan, plan.block_q)
    d_out_blocks = _to_blocks(d_out, plan, plan.block_q)
    delta = _to_blocks(delta[..., None], plan, plan.block_q).swapaxes(-1, -2)
    k_blocks, v_blocks = (_to_blocks(x, plan, plan.block_k) for x in (k, v))
    units = q_blocks.shape[0]

    def unit_backward(d_bias, parts):
        unit, q, k, v, theta, d_out, delta, log_sums, keys = parts
        q_t, d_out_t, k_t = jax.lax.optimization_barrier(tuple(x.swapaxes(-1, -2) for x in (q, d_out, k)))
        rows = {
            "q": q,
            "q_t": q_t,
            "d_out": d_out,
            "d_out_t": d_out_t,
            "delta": delta,
            "log_sum": log_sums,
            "keys": keys,
        }
        step = partial(_key_block_backward, plan, unit, rows, theta, bias, hidden)
        start = (jnp.zeros_like(q_t), jnp.zeros_like(theta), d_bias)
        (d_q, d_theta, d_bias), (d_k, d_v) = jax.lax.scan(step, start, (k, k_t, v, jnp.arange(plan.key_blocks)))
        return d_bias, (d_q.swapaxes(-1, -2), d_k, d_v, d_theta)

    parts = (jnp.arange(units), q_blocks, k_blocks, v_blocks, _unit_theta(theta, plan, units))
    d_bias, (d_q, d_k, d_v, d_theta) = jax.lax.scan(
        unit_backward,
        None if bias is None else jnp.zeros_like(bias),
        (*parts, d_out_blocks, delta, log_sums, keys),
    )
    d_q = _from_blocks(d_q, plan, plan.queries) / math.sqrt(q.shape[-1])
    d_k, d_v = (_from_blocks(x, plan, plan.keys) for x in (d_k, d_v))
    return d_q, d_k, d_v, _whole_theta(d_theta, plan), d_bias, None


def _key_block_backward(plan, unit, rows, theta, bias, hidden, carry, column):
    """One block of keys against every query block that sees it."""
    k, k_t, v, j = column

    def step(i, carry):
        d_k, d_v, d_q, d_theta, d_bias = carry
        q, q_t, d_out, d_out_t, delta, log_sum, keys = jax.tree.map(lambda row: row[i], tuple(rows.values()))
        visible, logits = _logits(plan, unit, bias, hidden, k, q_t, i, j)
        log_weights = plan.score.log_weight(logits, theta, keys)
        if visible is not None:
            log_weights = jnp.where(visible, log_weights, HIDDEN)
        weights = jnp.exp(log_weights - log_sum)
        d_log_weights = weights * (v @ d_out_t - delta)
        d_logits, d_theta_here = plan.score.log_weight_vjp(logits, theta, keys, d_log_weights)
        d_q = d_q.at[i].add(k_t @ d_logits, mode="promise_in_bounds")
        d_bias = None if bias is None else _add_block(d_bias, d_logits, plan, unit, i, j)
        return d_k + d_logits @ q, d_v + weights @ d_out, d_q, d_theta + d_theta_here, d_bias

    first, end = plan.query_range(j)
    start = (jnp.zeros_like(k), jnp.zeros_like(v), *carry)
    d_k, d_v, *carry = jax.lax.fori_loop(first, end, partial(_unless_hidden, plan, unit, hidden, None, j, step), start)
    return tuple(carry), (d_k, d_v)


_attend.defvjp(_forward, _backward)


def _logits(plan, unit, bias, hidden, k, q_t, i, j):
    """Which keys of block j the queries of block i see, and the logits, both keys by queries; 0 where hidden."""
    logits = k @ q_t
    if bias is not None:
        logits = logits + _block(bias, plan, unit, i, j)
    return _visible(plan, unit, hidden, i, j), logits


def _visible(plan, unit, hidden, i, j) -> Bool[Array, "#h #s #t"] | None:
    queries = i * plan.block_q + jnp.arange(plan.block_q)[None, None, :]
    keys = j * plan.block_k + jnp.arange(plan.block_k)[None, :, None]
    inside = keys < plan.keys if plan.keys % plan.block_k else None
    return combine(plan.pattern.visible(queries, keys), inside, _visible_by_data(plan, unit, hidden, i, j))


def _visible_by_data(plan, unit, hidden, i, j):
    same = None
    if hidden["segments"] is not None:
        of_queries, of_keys = (x[unit // plan.units_per_batch] for x in hidden["segments"])
        same = (of_keys[j][:, None] == of_queries[i])[None]
    return combine(same, None if hidden["mask"] is None else _block(hidden["mask"], plan, unit, i, j))


def _unless_hidden(plan, unit, hidden, i, j, step, index, carry):
    """step(index, carry), really skipped where mask or segments hide the whole block; i or j is the index."""
    i, j = (index if i is None else i), (index if j is None else j)
    visible = _visible_by_data(plan, unit, hidden, i, j)
    if visible is None:
        return step(index, carry)
    return jax.lax.cond(visible.any(), lambda carry: step(index, carry), lambda carry: carry, carry)


def _key_counts(plan, unit, hidden, i, dtype):
    """How many keys each query of block i sees, at least 1: [h or 1, 1, t]."""
    if hidden["mask"] is None and hidden["segments"] is None:
        counts = pattern_key_counts(plan.pattern, plan.query_blocks * plan.block_q, plan.keys)
        counts = counts.reshape(plan.query_blocks, 1, 1, plan.block_q)[i].astype(dtype)
        return counts
    heads = plan.heads if hidden["mask"] is not None and hidden["mask"].shape[1] > 1 else 1

    def count(j, total):
        return total + _visible(plan, unit, hidden, i, j).sum(1, keepdims=True)

    shape = (heads, 1, plan.block_q)
    return jax.lax.fori_loop(*plan.key_range(i), count, jnp.zeros(shape, int)).clip(1).astype(dtype)


def _to_blocks(x, plan, block) -> Float[Array, "unit blocks h t E"]:
    """[B, T, H, E], padded with zeros to whole blocks."""
    batch, length, heads, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, -length % block), (0, 0), (0, 0)))
    x = x.reshape(batch, -1, block, plan.units_per_batch, plan.heads, width)
    return x.transpose(0, 3, 1, 4, 2, 5).reshape(batch * plan.units_per_batch, -1, plan.heads, block, width)


def _from_blocks(x, plan, length) -> Float[Array, "B T H E"]:
    units, blocks, heads, block, width = x.shape
    x = x.reshape(-1, plan.units_per_batch, blocks, heads, block, width).transpose(0, 2, 4, 1, 3, 5)
    return x.reshape(x.shape[0], blocks * block, -1, width)[:, :length]


def _unit_theta(theta, plan, units) -> Float[Array, "unit P h 1 1"]:
    theta = theta.reshape(theta.shape[0], plan.units_per_batch, plan.heads).transpose(1, 0, 2)[..., None, None]
    return jnp.tile(theta, (units // plan.units_per_batch, 1, 1, 1, 1))


def _whole_theta(d_theta, plan) -> Float[Array, "P H"]:
    units, numbers, heads = d_theta.shape[:3]
    d_theta = d_theta.reshape(units // plan.units_per_batch, plan.units_per_batch, numbers, heads).sum(0)
    return d_theta.transpose(1, 0, 2).reshape(numbers, plan.units_per_batch * heads)


def _segment_blocks(segments, plan):
    """Segments cut into blocks; what is padded belongs to no segment of the other side."""
    sides = zip(segments, (plan.block_q, plan.block_k), (-1, -2), strict=True)
    return tuple(
        jnp.pad(side, ((0, 0), (0, -side.shape[1] % block)), constant_values=none).reshape(side.shape[0], -1, block)
        for side, block, none in sides
    )


def _whole_blocks(x, plan):
    """Pads the axes of [B or 1, H or 1, T or 1, S or 1] that are not broadcast to whole blocks."""
    if x is None:
        return None
    tails = [
        0 if size == 1 else -size % block for size, block in zip(x.shape[2:], (plan.block_q, plan.block_k), strict=True)
    ]
    return jnp.pad(x, ((0, 0), (0, 0), (0, tails[0]), (0, tails[1])))


def _corner(x, plan, unit, i, j):
    """Where block (i, j) of a unit begins in x, and its sizes there."""
    batch, head = unit // plan.units_per_batch, unit % plan.units_per_batch * plan.heads
    start = (batch, head, i * plan.block_q, j * plan.block_k)
    sizes = (1, plan.heads, plan.block_q, plan.block_k)
    kept = [size > 1 for size in x.shape]
    return [s if keep else 0 for s, keep in zip(start, kept, strict=True)], [
        s if keep else 1 for s, keep in zip(sizes, kept, strict=True)
    ]


def _block(x, plan, unit, i, j) -> Array:
    """Block (i, j) of an array that broadcasts to [B, H, T, S], keys by queries."""
    return jax.lax.dynamic_slice(x, *_corner(x, plan, unit, i, j))[0].swapaxes(-1, -2)


def _add_block(x, block, plan, unit, i, j):
    """Adds a block, summed over the axes along which x is broadcast."""
    start, sizes = _corner(x, plan, unit, i, j)
    block = block.swapaxes(-1, -2)[None]
    axes = tuple(axis for axis, size in enumerate(sizes) if size == 1 and block.shape[axis] > 1)
    block = block.sum(axes, keepdims=True) + jax.lax.dynamic_slice(x, start, sizes)
    return jax.lax.dynamic_update_slice(x, block, start)
