"""Attention in blocks, for any log-weight score function: plain XLA, memory linear in T, no hidden block computed.

Every block of logits is made, scored and used while it is in cache; a running maximum and sum per query replace the
row. The backward pass makes each block again from the saved log of the denominator. Inside, blocks lie keys by
queries: then all products are plain matrix products, the maximum runs over an outer axis, and what belongs to a query
broadcasts along the inner one, which is what a CPU does fast.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.attention.blocks import (
    Blocks,
    Plan,
    add_block,
    block_of,
    default_blocks,
    from_blocks,
    segment_blocks,
    theta_from_units,
    theta_of_units,
    to_blocks,
    visible,
    visible_by_data,
    whole_blocks,
)
from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments, key_counts
from ssa_jax.attention.streaming import backward, finish, masked_log_weights, row_delta, start, step
from ssa_jax.scores import LogWeight, Params
from ssa_jax.scores.base import compute_dtype


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
    blocks: Blocks | None = None,
) -> Float[Array, "B T H F"]:
    """As `dense.attend`, in memory linear in T; log-weight score functions only."""
    batch, queries, heads, _ = q.shape
    keys = k.shape[1]
    plan = Plan(score, pattern, batch, heads, queries, keys, blocks or default_blocks(batch, heads, queries, keys))
    wide = compute_dtype(q.dtype)
    theta = score.theta(score.checked(params)).astype(wide)
    theta = jnp.broadcast_to(theta, (theta.shape[0], heads))
    k, v = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
    hidden = {
        "segments": None if segments is None else segment_blocks(segments, plan),
        "mask": None if mask is None else whole_blocks(mask, plan),
    }
    bias = None if bias is None else whole_blocks(bias.astype(wide), plan)
    counts = None
    if score.counts_keys:
        counts = jnp.broadcast_to(key_counts(queries, keys, pattern, segments, mask), (batch, heads, queries))
        counts = to_blocks(counts.swapaxes(1, 2)[..., None].astype(wide), plan, plan.blocks.queries)
        counts = counts.swapaxes(-1, -2).clip(1)  # queries that only pad have none
    return _attend(plan, q.astype(wide), k.astype(wide), v.astype(wide), theta, bias, hidden, counts).astype(v.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q, k, v, theta, bias, hidden, counts):
    return _forward(plan, q, k, v, theta, bias, hidden, counts)[0]


def _forward(plan, q, k, v, theta, bias, hidden, counts):
    q_t = to_blocks(q / math.sqrt(q.shape[-1]), plan, plan.blocks.queries).swapaxes(-1, -2)
    k_blocks = to_blocks(k, plan, plan.blocks.keys)
    v_t = to_blocks(v, plan, plan.blocks.keys).swapaxes(-1, -2)

    def unit_forward(parts):
        unit, q_t, k, v_t, theta, counts = parts
        rows = partial(_query_block_forward, plan, unit, k, v_t, theta, bias, hidden)
        return jax.lax.map(lambda row: rows(*row), (q_t, counts, jnp.arange(plan.query_blocks)))

    parts = (jnp.arange(plan.units), q_t, k_blocks, v_t, theta_of_units(theta, plan), counts)
    out, log_sums = jax.lax.map(unit_forward, parts)
    out = from_blocks(out.swapaxes(-1, -2), plan, plan.queries)
    return out, (q, k, v, theta, bias, hidden, counts, out, log_sums)


def _query_block_forward(plan, unit, k, v_t, theta, bias, hidden, q_t, counts, i):
    """One block of queries against every key block that it sees: output and log of the denominator."""

    def add(j, carry):
        out, top, total = carry
        logits, seen = _logits(plan, unit, bias, hidden, k[j], q_t, i, j)
        log_weights = masked_log_weights(plan.score, logits, theta, counts, seen)
        weights, shrink, top, total = step(plan.score, log_weights, top, total, key_axis=-2)
        return (out if shrink is None else out * shrink) + v_t[j] @ weights, top, total

    *rows, _, width = q_t.shape
    empty = jnp.zeros((*rows, v_t.shape[-2], width), q_t.dtype)
    carry = (empty, *start(plan.score, (*rows, 1, width), q_t.dtype))
    return finish(plan.score, *_for_seen(plan.key_range(i), plan, hidden, unit, lambda j: (i, j), add, carry))


def _backward(plan, residuals, d_out):
    q, k, v, theta, bias, hidden, counts, out, log_sums = residuals
    delta = row_delta(plan.score, out, d_out)
    q_blocks = to_blocks(q / math.sqrt(q.shape[-1]), plan, plan.blocks.queries)
    d_out_blocks = to_blocks(d_out, plan, plan.blocks.queries)
    delta = to_blocks(delta[..., None], plan, plan.blocks.queries).swapaxes(-1, -2)
    k_blocks, v_blocks = (to_blocks(x, plan, plan.blocks.keys) for x in (k, v))

    def unit_backward(d_bias, parts):
        unit, q, k, v, theta, d_out, delta, log_sums, counts = parts
        # made once: a product with a transposed block takes twice the time
        q_t, d_out_t, k_t = jax.lax.optimization_barrier(tuple(x.swapaxes(-1, -2) for x in (q, d_out, k)))
        column = partial(
            _key_block_backward, plan, unit, (q, q_t, d_out, d_out_t, delta, log_sums, counts), theta, bias, hidden
        )
        start = (jnp.zeros_like(q_t), jnp.zeros_like(theta), d_bias)
        (d_q, d_theta, d_bias), (d_k, d_v) = jax.lax.scan(column, start, (k, k_t, v, jnp.arange(plan.key_blocks)))
        return d_bias, (d_q.swapaxes(-1, -2), d_k, d_v, d_theta)

    d_bias, (d_q, d_k, d_v, d_theta) = jax.lax.scan(
        unit_backward,
        None if bias is None else jnp.zeros_like(bias),
        (
            jnp.arange(plan.units),
            *(q_blocks, k_blocks, v_blocks),
            theta_of_units(theta, plan),
            *(d_out_blocks, delta, log_sums, counts),
        ),
    )
    d_q = from_blocks(d_q, plan, plan.queries) / math.sqrt(q.shape[-1])
    d_k, d_v = (from_blocks(x, plan, plan.keys) for x in (d_k, d_v))
    return d_q, d_k, d_v, theta_from_units(d_theta, plan), d_bias, None, None


def _key_block_backward(plan, unit, rows, theta, bias, hidden, carry, column):
    """One block of keys against every query block that sees it."""
    k, k_t, v, j = column

    def add(i, carry):
        d_k, d_v, d_q, d_theta, d_bias = carry
        q, q_t, d_out, d_out_t, delta, log_sum, counts = jax.tree.map(lambda row: row[i], rows)
        logits, seen = _logits(plan, unit, bias, hidden, k, q_t, i, j)
        weights, d_logits, d_theta_here = backward(plan.score, logits, theta, counts, seen, log_sum, v @ d_out_t, delta)
        d_q = jax.lax.dynamic_update_index_in_dim(d_q, d_q[i] + k_t @ d_logits, i, axis=0)
        d_bias = None if bias is None else add_block(d_bias, d_logits, plan, unit, i, j)
        return d_k + d_logits @ q, d_v + weights @ d_out, d_q, d_theta + d_theta_here, d_bias

    carry = (jnp.zeros_like(k), jnp.zeros_like(v), *carry)
    d_k, d_v, *carry = _for_seen(plan.query_range(j), plan, hidden, unit, lambda i: (i, j), add, carry)
    return tuple(carry), (d_k, d_v)


_attend.defvjp(_forward, _backward)


def _logits(plan, unit, bias, hidden, k, q_t, i, j):
    """The logits of block (i, j), keys by queries, and which of them are seen."""
    logits = k @ q_t
    logits = logits if bias is None else logits + block_of(bias, plan, unit, i, j)
    return logits, visible(plan, hidden, unit, i, j)


def _for_seen(block_range, plan, hidden, unit, place, add, carry):
    """add(index, carry) over the blocks of a range, really skipping those that mask or segments hide whole."""

    def body(index, carry):
        seen = visible_by_data(plan, hidden, unit, *place(index))
        if seen is None:
            return add(index, carry)
        return jax.lax.cond(seen.any(), partial(add, index), lambda carry: carry, carry)

    return jax.lax.fori_loop(*block_range, body, carry)
