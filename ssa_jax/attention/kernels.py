"""What the Pallas kernels of GPU and TPU share: how `attend` reaches them, their inputs, and their gradients.

A kernel is a pair of functions over padded arrays with heads before positions, `Operands`; score functions enter
through `streaming`, with theta as a tuple of scalars.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ssa_jax.attention.blocks import Blocks, Plan
from ssa_jax.attention.masks import combine, key_counts
from ssa_jax.attention.streaming import row_delta


class Operands(NamedTuple):
    """Padded inputs of a kernel; what a call does not use is None."""

    q: Float[Array, "B H T E"]
    k: Float[Array, "B G S E"]
    v: Float[Array, "B G S F"]
    theta: Float[Array, "H P"]
    bias: Float[Array, "#B #H #T #S"] | None
    mask: Int[Array, "#B #H #T #S"] | None
    query_segments: Int[Array, "B T"] | None
    key_segments: Int[Array, "B S"] | None
    counts: Float[Array, "B H T"] | None


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A platform's kernels and what it asks of shapes.

    forward(plan, scale, operands) -> out [B, H, T, F] in float32, log of the denominators [B, H, T].
    backward(plan, scale, operands, d_out, log_sums, delta) -> gradients of q, of k and v for each query head, of theta
    [H, P], and of bias in bias's own shape; float32.
    """

    forward: Callable
    backward: Callable
    block: Callable[[int, int], int]
    """Block of positions for a length and a count of theta's numbers, which take room or time."""
    width: Callable[[int], int]
    """E or F padded."""


def attend(kernel, q, k, v, score, params, pattern, segments, mask, bias) -> Float[Array, "B T H F"]:
    """As `dense.attend`; log-weight score functions, any lengths and widths (padded here)."""
    batch, queries, heads, width = q.shape
    keys, v_width = k.shape[1], v.shape[-1]
    if q.dtype == jnp.float64:
        raise ValueError("Pallas kernels compute in float32: use 'blockwise' or 'dense' for float64.")
    theta = score.theta(score.checked(params)).astype(jnp.float32)
    block_q, block_k = (kernel.block(length, theta.shape[0]) for length in (queries, keys))
    plan = Plan(score, pattern, batch, heads, queries, keys, Blocks(block_q, block_k, 1, 1))
    # a kernel has no empty arrays
    theta = jnp.broadcast_to(theta, (theta.shape[0], heads)).T if theta.shape[0] else jnp.zeros((heads, 1), jnp.float32)

    def padded(x, block):
        x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0), (0, kernel.width(x.shape[-1]) - x.shape[-1])))
        return x.transpose(0, 2, 1, 3)

    counts = None
    if score.counts_keys:
        counts = jnp.broadcast_to(key_counts(queries, keys, pattern, segments, mask), (batch, heads, queries))
        counts = _pad_to(counts, (block_q,), 1.0)
    operands = Operands(
        padded(q, block_q),
        padded(k, block_k),
        padded(v, block_k),
        theta,
        None if bias is None else _pad_to(bias.astype(jnp.float32), (block_q, block_k), 0.0),
        None if mask is None else _pad_to(mask.astype(jnp.int8), (block_q, block_k), 0),
        None if segments is None else _pad_to(segments[0].astype(jnp.int32), (block_q,), -1),
        None if segments is None else _pad_to(segments[1].astype(jnp.int32), (block_k,), -2),
        counts,
    )
    out = _attend(kernel, plan, 1 / math.sqrt(width), operands)
    return out[:, :, :queries, :v_width].transpose(0, 2, 1, 3).astype(v.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(kernel, plan, scale, operands):
    return kernel.forward(plan, scale, operands)[0]


def _forward(kernel, plan, scale, operands):
    out, log_sums = kernel.forward(plan, scale, operands)
    return out, (operands, out, log_sums)


def _backward(kernel, plan, scale, residuals, d_out):
    operands, out, log_sums = residuals
    delta = row_delta(plan.score, out, d_out)
    d_out = d_out.astype(operands.v.dtype)
    d_q, d_k, d_v, d_theta, d_bias = kernel.backward(plan, scale, operands, d_out, log_sums, delta)
    batch, groups, keys = operands.k.shape[:3]

    def of_groups(x):
        return x.reshape(batch, groups, -1, keys, x.shape[-1]).sum(2)

    d_k, d_v = of_groups(d_k).astype(operands.k.dtype), of_groups(d_v).astype(operands.v.dtype)
    return (Operands(d_q.astype(operands.q.dtype), d_k, d_v, d_theta, d_bias, None, None, None, None),)


_attend.defvjp(_forward, _backward)


def _pad_to(x, blocks, fill):
    """Pads the last axes to whole blocks; an axis of size 1 may be broadcast and stays."""
    tails = [
        0 if size == 1 and x.ndim == 4 else -size % block
        for size, block in zip(x.shape[-len(blocks) :], blocks, strict=True)
    ]
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(blocks)) + [(0, tail) for tail in tails], constant_values=fill)


def seen_in_block(plan, i, j, shape, key_axis, query_segments, key_segments, mask):
    """Which keys of block (i, j) are seen; None where all are. Arrays broadcast to `shape`."""
    queries = i * plan.blocks.queries + jax.lax.broadcasted_iota(jnp.int32, shape, 1 - key_axis)
    keys = j * plan.blocks.keys + jax.lax.broadcasted_iota(jnp.int32, shape, key_axis)
    inside = keys < plan.keys if plan.keys % plan.blocks.keys else None
    same = None if query_segments is None else query_segments == key_segments
    given = None if mask is None else mask.astype(jnp.int32) != 0
    return combine(plan.pattern.visible(queries, keys), inside, same, given)


def product(a: Float[Array, "m k"], b: Float[Array, "k n"]) -> Float[Array, "m n"]:
    """a @ b in float32: exact to rounding for float32, as the hardware has it for bfloat16."""
    return contract(a, b, 1, 0)


def contract(a, b, axis_a, axis_b):
    """The product of two matrices over the given axes, in float32."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        a, b, (((axis_a,), (axis_b,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )


def scalars_of(theta_ref, head=()) -> tuple[Float[Array, ""], ...]:
    """The score function's numbers as a tuple, which tells it that it is inside a kernel."""
    return tuple(theta_ref[(*head, p)] for p in range(theta_ref.shape[-1]))


def place_scalars(values, shape) -> Float[Array, "..."]:
    """Scalars in a row, in the first places of an array of this shape: kernels cannot stack them."""
    index = jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    total = jnp.zeros(shape, jnp.float32)
    for p, value in enumerate(values):
        total = jnp.where(index == p, value, total)
    return total
