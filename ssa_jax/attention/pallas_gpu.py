"""Attention on a GPU (Pallas, Triton), forward and backward, for any log-weight score function.

A program owns one block of queries and loops over the key blocks that it sees, or the other way round: nothing is
added up between programs, so results are the same in every run. The loop over keys has queries by keys, the loop over
queries keys by queries: weights then enter the next product as they lie in registers. Gradients take two kernels,
queries' (q, theta) and keys' (k, v), and one more for a bias that has both axes.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Bool, Float

from ssa_jax.attention import kernels
from ssa_jax.attention.blocks import Blocks, quotient
from ssa_jax.attention.kernels import contract, place_scalars, scalars_of, seen_in_block
from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments
from ssa_jax.attention.streaming import backward, finish, masked_log_weights, start, step
from ssa_jax.scores import LogWeight, Params

LARGEST = 64  # block that lengths are padded to
SMALLEST = 16  # Triton multiplies no smaller matrices, and only powers of two
FEW = 4  # numbers of a score function for which each row may keep its own sums


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
) -> Float[Array, "B T H F"]:
    """As `dense.attend`; elsewhere than on a GPU the kernels are interpreted."""
    return kernels.attend(_KERNEL, q, k, v, score, params, pattern, segments, mask, bias)


def _launch(kernel, wide, float32, many):
    """(queries, keys, warps) a program of 'forward', 'query' or 'key': the largest whose registers hardly spill.

    By what ptxas says for an H100. wide: E or F above 64; many: more than FEW numbers in the score function.
    """
    if kernel == "forward":
        return ((32, 32, 8) if wide else (64, 32, 4)) if float32 else (64, 64, 4)
    if float32:
        return ((16, 32, 4) if kernel == "query" else (32, 16, 4)) if wide else (32, 32, 4)
    if kernel == "query" and many:
        return 32, 32, 4
    if not wide:
        return 64, 64, 4
    return (64, 32, 4) if kernel == "query" else (32, 64, 4)


def _power_of_two(size):
    return max(SMALLEST, pl.next_power_of_2(size))


def _run(body, name, warps, grid, inputs, outputs):
    """Calls body(dot, *inputs, *outputs) on references to whole arrays; interprets it where there is no GPU."""

    def call(dot, interpret=False):
        return pl.pallas_call(
            functools.partial(body, dot),
            grid=grid,
            out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs],
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=2),
            interpret=interpret,
            name=name,
        )

    return jax.lax.platform_dependent(*inputs, cuda=call(_split_dot), rocm=call(contract), default=call(contract, True))


def _split_dot(a, b, axis_a, axis_b):
    """The product of two matrices in float32; of float32 by tensor cores, each number split in two TF32 ones.

    Ordinary float32 products keep so many numbers in registers that most of them spill.
    """
    if a.dtype != jnp.float32:
        return contract(a, b, axis_a, axis_b)
    precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    dimensions = (((axis_a,), (axis_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


class _Program:
    """What one program reads: batch element b, head h, and blocks of the operands; key_axis says how logits lie."""

    def __init__(self, plan, scale, refs, b, h, key_axis, dot):
        self.plan, self.scale, self.refs, self.b, self.h, self.key_axis = plan, scale, refs, b, h, key_axis
        self.dot = dot
        self.group = quotient(h, refs.q.shape[1] // refs.k.shape[1])

    def rows(self, i):
        return pl.ds(i * self.plan.blocks.queries, self.plan.blocks.queries)

    def columns(self, j):
        return pl.ds(j * self.plan.blocks.keys, self.plan.blocks.keys)

    def query(self, ref, i):
        """Block i of an array [B, H, T, E]."""
        return ref[self.b, self.h, self.rows(i), :]

    def key(self, ref, j):
        """Block j of an array [B, G, S, E]."""
        return ref[self.b, self.group, self.columns(j), :]

    def of_queries(self, x):
        """One number a query, to broadcast against logits."""
        return jnp.expand_dims(x, self.key_axis)

    def row(self, ref, i):
        """Block i of an array [B, H, T], to broadcast against logits."""
        return None if ref is None else self.of_queries(ref[self.b, self.h, self.rows(i)])

    def pair(self, ref, i, j):
        """Block (i, j) of an array that broadcasts to [B, H, T, S], lying as logits do."""
        places = (self.b, self.h, self.rows(i), self.columns(j))
        once = (0, 0, pl.ds(0, 1), pl.ds(0, 1))
        block = ref[tuple(o if size == 1 else at for size, at, o in zip(ref.shape, places, once, strict=True))]
        return block if self.key_axis == 1 else block.T

    def logits(self, q, k, i, j):
        """Logits of a block, queries by keys or keys by queries."""
        logits = self.scale * (self.dot(q, k, 1, 1) if self.key_axis == 1 else self.dot(k, q, 1, 1))
        if self.refs.bias is not None:
            logits = logits + self.pair(self.refs.bias, i, j)
        return logits

    def seen(self, i, j):
        """Which keys of block j the queries of block i see; None where all."""
        of_queries = of_keys = None
        if self.refs.query_segments is not None:
            of_queries = self.of_queries(self.refs.query_segments[self.b, self.rows(i)])
            of_keys = jnp.expand_dims(self.refs.key_segments[self.b, self.columns(j)], 1 - self.key_axis)
        mask = None if self.refs.mask is None else self.pair(self.refs.mask, i, j)
        blocks = self.plan.blocks
        shape = (blocks.queries, blocks.keys) if self.key_axis == 1 else (blocks.keys, blocks.queries)
        return seen_in_block(self.plan, i, j, shape, self.key_axis, of_queries, of_keys, mask)

    def gradients(self, q, k, v, d_out, rows, theta, i, j, seen):
        """Weights, and the gradients of logits and theta; rows is (log_sum, delta)."""
        logits = self.logits(q, k, i, j)
        d_weights = self.dot(d_out, v, 1, 1) if self.key_axis == 1 else self.dot(v, d_out, 1, 1)
        log_sum, delta = rows
        counts = self.row(self.refs.counts, i)
        return backward(self.plan.score, logits, theta, counts, seen, log_sum, d_weights, delta)

    def loop(self, first, end, place, add, carry):
        """add(index, seen, carry) for all blocks, place(index) = (i, j), but those that mask or segments hide whole."""

        def visit(index, carry):
            seen = self.seen(*place(index))
            if self.refs.mask is None and self.refs.query_segments is None:
                return add(index, seen, carry)
            any_seen = jnp.max(jnp.where(seen, 1, 0)) > 0
            return jax.lax.cond(any_seen, lambda carry: add(index, seen, carry), lambda carry: carry, carry)

        end = jnp.asarray(end, jnp.int32)
        return jax.lax.fori_loop(jnp.minimum(jnp.asarray(first, jnp.int32), end), end, visit, carry)


def _cut(kernel, plan, operands):
    """The plan in this kernel's blocks, how many of queries and of keys cover the padded arrays, and warps."""
    wide = max(operands.q.shape[-1], operands.v.shape[-1]) > 64
    float32 = operands.v.dtype == jnp.float32
    queries, keys, warps = _launch(kernel, wide, float32, operands.theta.shape[1] > FEW)
    blocks = Blocks(min(queries, plan.blocks.queries), min(keys, plan.blocks.keys), 1, 1)
    counts = operands.q.shape[2] // blocks.queries, operands.k.shape[2] // blocks.keys
    return dataclasses.replace(plan, blocks=blocks), *counts, warps


def _forward(plan, scale, operands):
    plan, query_blocks, _, warps = _cut("forward", plan, operands)
    batch, heads, queries, _ = operands.q.shape
    v_width = operands.v.shape[-1]
    score, block_q = plan.score, plan.blocks.queries

    def body(dot, refs, out_ref, log_sum_ref):
        # causal rows with the most keys first: what begins last should be short
        i = query_blocks - 1 - pl.program_id(0)
        at = _Program(plan, scale, refs, pl.program_id(2), pl.program_id(1), 1, dot)
        q, theta, counts = at.query(refs.q, i), scalars_of(refs.theta, (at.h,)), at.row(refs.counts, i)

        def see(j, seen, carry):
            out, *rows = carry
            top, total = map(at.of_queries, rows)
            log_weights = masked_log_weights(score, at.logits(q, at.key(refs.k, j), i, j), theta, counts, seen)
            weights, shrink, top, total = step(score, log_weights, top, total, key_axis=1)
            out = out if shrink is None else out * shrink
            # carried without the axis of keys, along which threads would each keep copies
            return out + dot(weights.astype(refs.v.dtype), at.key(refs.v, j), 1, 0), top.sum(1), total.sum(1)

        begin = (jnp.zeros((block_q, v_width), jnp.float32), *start(score, (block_q,), jnp.float32))
        out, *rows = at.loop(*plan.key_range(i), lambda j: (i, j), see, begin)
        out, log_sum = finish(score, out, *map(at.of_queries, rows))
        out_ref[at.b, at.h, at.rows(i), :] = out
        log_sum_ref[at.b, at.h, at.rows(i)] = log_sum.sum(1)

    shapes = ((batch, heads, queries, v_width), (batch, heads, queries))
    return _run(body, "attention_forward", warps, (query_blocks, heads, batch), (operands,), shapes)


def _backward(plan, scale, operands, d_out, log_sums, delta):
    inputs = (operands, d_out, log_sums, delta)
    shape = () if operands.bias is None else operands.bias.shape
    by_row = bool(shape) and shape[3] == 1
    by_column = bool(shape) and not by_row and shape[2] == 1
    d_q, d_theta, *of_rows = _query_gradients(plan, scale, inputs, by_row)
    d_k, d_v, *of_columns = _key_gradients(plan, scale, inputs, by_column)
    d_bias = None
    if shape:
        [d_bias] = of_rows or of_columns or _bias_gradient(plan, scale, inputs)
        d_bias = d_bias.sum([axis for axis, size in enumerate(shape) if size == 1], keepdims=True)
    return d_q, d_k, d_v, d_theta.sum((0, 2))[:, : operands.theta.shape[1]], d_bias


def _query_gradients(plan, scale, inputs, with_bias):
    """Gradients of q, of theta by query blocks, and with_bias of a bias that is the same for all keys."""
    operands = inputs[0]
    plan, query_blocks, _, warps = _cut("query", plan, operands)
    batch, heads, queries, width = operands.q.shape
    numbers, block_q = operands.theta.shape[1], plan.blocks.queries
    place, few = pl.next_power_of_2(numbers), numbers <= FEW

    def body(dot, refs, d_out_ref, log_sum_ref, delta_ref, d_q_ref, d_theta_ref, *d_bias_ref):
        i = query_blocks - 1 - pl.program_id(0)
        at = _Program(plan, scale, refs, pl.program_id(2), pl.program_id(1), 1, dot)
        q, d_out = at.query(refs.q, i), at.query(d_out_ref, i)
        rows = at.row(log_sum_ref, i), at.row(delta_ref, i)
        theta = scalars_of(refs.theta, (at.h,))
        if few:
            # a theta for each row: its gradient in the loop is then a sum over keys, as the softmax has
            theta = tuple(jnp.full((block_q, 1), number) for number in theta)

        def see(j, seen, carry):
            d_q, d_theta, d_bias = carry
            k, v = at.key(refs.k, j), at.key(refs.v, j)
            _, d_logits, d_theta_here = at.gradients(q, k, v, d_out, rows, theta, i, j, seen)
            if with_bias:
                d_bias = d_bias + d_logits.sum(1)
            d_theta = tuple(
                total + (here.sum(1) if few else here) for total, here in zip(d_theta, d_theta_here, strict=True)
            )
            return d_q + dot(d_logits.astype(k.dtype), k, 1, 0), d_theta, d_bias

        nothing = jnp.zeros(block_q, jnp.float32)
        begin = (
            jnp.zeros((block_q, width), jnp.float32),
            (nothing if few else jnp.float32(0),) * numbers,
            nothing if with_bias else (),
        )
        d_q, d_theta, d_bias = at.loop(*plan.key_range(i), lambda j: (i, j), see, begin)
        d_q_ref[at.b, at.h, at.rows(i), :] = scale * d_q
        d_theta_ref[at.b, at.h, i, :] = place_scalars([total.sum() for total in d_theta], (place,))
        if with_bias:
            d_bias_ref[0][at.b, at.h, at.rows(i), 0] = d_bias

    shapes = [(batch, heads, queries, width), (batch, heads, query_blocks, place)]
    shapes += [(batch, heads, queries, 1)] * with_bias
    return _run(body, "attention_query_gradients", warps, (query_blocks, heads, batch), inputs, shapes)


def _key_gradients(plan, scale, inputs, with_bias):
    """Gradients of k and v for each query head, and with_bias of a bias that is the same for all queries."""
    operands = inputs[0]
    plan, _, key_blocks, warps = _cut("key", plan, operands)
    batch, heads, _, width = operands.q.shape
    keys, v_width = operands.v.shape[2:]
    block_k = plan.blocks.keys

    def body(dot, refs, d_out_ref, log_sum_ref, delta_ref, d_k_ref, d_v_ref, *d_bias_ref):
        j = pl.program_id(0)
        at = _Program(plan, scale, refs, pl.program_id(2), pl.program_id(1), 0, dot)
        k, v, theta = at.key(refs.k, j), at.key(refs.v, j), scalars_of(refs.theta, (at.h,))

        def be_seen(i, seen, carry):
            d_k, d_v, d_bias = carry
            q, d_out = at.query(refs.q, i), at.query(d_out_ref, i)
            rows = at.row(log_sum_ref, i), at.row(delta_ref, i)
            weights, d_logits, _ = at.gradients(q, k, v, d_out, rows, theta, i, j, seen)
            if with_bias:
                d_bias = d_bias + d_logits.sum(1)
            d_v = d_v + dot(weights.astype(d_out.dtype), d_out, 1, 0)
            return d_k + dot(d_logits.astype(q.dtype), q, 1, 0), d_v, d_bias

        begin = jnp.zeros((block_k, width)), jnp.zeros((block_k, v_width)), jnp.zeros(block_k) if with_bias else ()
        d_k, d_v, d_bias = at.loop(*plan.query_range(j), lambda i: (i, j), be_seen, begin)
        d_k_ref[at.b, at.h, at.columns(j), :] = scale * d_k
        d_v_ref[at.b, at.h, at.columns(j), :] = d_v
        if with_bias:
            d_bias_ref[0][at.b, at.h, 0, at.columns(j)] = d_bias

    shapes = [(batch, heads, keys, width), (batch, heads, keys, v_width)]
    shapes += [(batch, heads, 1, keys)] * with_bias
    return _run(body, "attention_key_gradients", warps, (key_blocks, heads, batch), inputs, shapes)


def _bias_gradient(plan, scale, inputs):
    """The gradient of a bias with both axes: a program adds up what all batch elements and heads of it give."""
    operands = inputs[0]
    plan, query_blocks, key_blocks, warps = _cut("query", plan, operands)
    batch, heads = operands.q.shape[:2]
    bias_batch, bias_heads = operands.bias.shape[:2]
    heads_each = heads // bias_heads
    shape = plan.blocks.queries, plan.blocks.keys

    def body(dot, refs, d_out_ref, log_sum_ref, delta_ref, d_bias_ref):
        j, i, own = pl.program_id(0), pl.program_id(1), pl.program_id(2)
        own_batch = quotient(own, bias_heads)
        own_head = own - own_batch * bias_heads

        def program(term):
            other_batch = quotient(term, heads_each)
            b = own_batch if bias_batch > 1 else other_batch
            h = own_head if bias_heads > 1 else term - other_batch * heads_each
            return _Program(plan, scale, refs, b, h, 1, dot)

        def add(term, total):
            at = program(term)
            q, k, v, d_out = at.query(refs.q, i), at.key(refs.k, j), at.key(refs.v, j), at.query(d_out_ref, i)
            rows, theta = (at.row(log_sum_ref, i), at.row(delta_ref, i)), scalars_of(refs.theta, (at.h,))
            return total + at.gradients(q, k, v, d_out, rows, theta, i, j, at.seen(i, j))[1]

        first, end = plan.key_range(i)
        terms = ((j >= first) & (j < end)).astype(jnp.int32) * (batch // bias_batch * heads_each)
        total = jax.lax.fori_loop(jnp.int32(0), terms, add, jnp.zeros(shape, jnp.float32))
        place = pl.ds(i * shape[0], shape[0]), pl.ds(j * shape[1], shape[1])
        d_bias_ref[(own_batch, own_head, *place)] = total

    grid = (key_blocks, query_blocks, bias_batch * bias_heads)
    return _run(body, "attention_bias_gradient", warps, grid, inputs, [operands.bias.shape])


_KERNEL = kernels.Kernel(
    _forward,
    _backward,
    block=lambda length, numbers: min(LARGEST, _power_of_two(length)),
    width=_power_of_two,
)
