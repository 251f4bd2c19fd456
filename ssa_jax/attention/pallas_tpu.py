"""Attention on a TPU (Pallas, Mosaic), forward and backward, for any log-weight score function.

Blocks lie keys by queries: maxima and sums over keys then run over sublanes, what belongs to a query is a row of
lanes, and no matrix is transposed inside. The grid runs over blocks; hidden blocks are neither fetched nor computed.
Gradients take two kernels: one block of queries against its keys (q, theta, bias), one of keys against its queries.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float

from ssa_jax.attention import kernels
from ssa_jax.attention.blocks import quotient
from ssa_jax.attention.kernels import place_scalars, product, scalars_of, seen_in_block
from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments
from ssa_jax.attention.streaming import backward, finish, masked_log_weights, start, step
from ssa_jax.scores import LogWeight, Params

LANES = 128
BLOCK = 512


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
    """As `dense.attend`; elsewhere than on a TPU the kernels are interpreted."""
    return kernels.attend(_KERNEL, q, k, v, score, params, pattern, segments, mask, bias)


class _Blocks:
    """Which part of each array a grid step works on; the grid is (batch, head, outer block, inner block).

    inner: 'keys' or 'queries'. Inner blocks that the pattern hides repeat a visible one, which is then not fetched.
    """

    def __init__(self, plan, operands, inner):
        self.plan, self.inner = plan, inner
        self.block_q, self.block_k = plan.blocks.queries, plan.blocks.keys
        self.heads_per_group = operands.q.shape[1] // operands.k.shape[1]
        counts = (plan.query_blocks, plan.key_blocks)
        self.grid = (plan.batch, plan.heads, *(counts if inner == "keys" else counts[::-1]))

    def position(self, outer, inner):
        """(query block, key block) of a grid step."""
        return (outer, inner) if self.inner == "keys" else (inner, outer)

    def visible_range(self, outer):
        return self.plan.key_range(outer) if self.inner == "keys" else self.plan.query_range(outer)

    def _fetched(self, outer, inner):
        first, end = self.visible_range(outer)
        last = self.grid[3] - 1
        return self.position(outer, jnp.clip(inner, jnp.minimum(first, last), jnp.clip(end - 1, 0, last)))

    def _spec(self, shape, index):
        return pl.BlockSpec((None,) * (4 - len(shape)) + shape, index)

    def query(self, width):
        return self._spec((self.block_q, width), lambda b, h, x, y: (b, h, self._fetched(x, y)[0], 0))

    def query_t(self, width):
        return self._spec((width, self.block_q), lambda b, h, x, y: (b, h, 0, self._fetched(x, y)[0]))

    def key(self, width):
        group = self.heads_per_group
        return self._spec((self.block_k, width), lambda b, h, x, y: (b, quotient(h, group), self._fetched(x, y)[1], 0))

    def key_t(self, width):
        group = self.heads_per_group
        return self._spec((width, self.block_k), lambda b, h, x, y: (b, quotient(h, group), 0, self._fetched(x, y)[1]))

    def key_gradient(self, width):
        return self._spec((self.block_k, width), lambda b, h, x, y: (b, h, x, 0))

    def logits_t(self, shape, fetched=True):
        """A block, keys by queries, of an array that broadcasts to [B, H, S, T]."""

        def index(b, h, x, y):
            i, j = self._fetched(x, y) if fetched else self.position(x, y)
            return tuple(0 if size == 1 else at for size, at in zip(shape, (b, h, j, i), strict=True))

        sizes = (1 if shape[2] == 1 else self.block_k, 1 if shape[3] == 1 else self.block_q)
        return self._spec(sizes, index)

    def inputs(self, operands):
        """Name: (array, spec) of what every kernel needs in order to make log weights."""
        named = {"theta": (operands.theta, pl.BlockSpec(memory_space=pltpu.SMEM))}
        for name in ("bias", "mask"):
            if (array := getattr(operands, name)) is not None:
                array = array.swapaxes(-1, -2)
                named[name] = (array, self.logits_t(array.shape))
        if operands.query_segments is not None:
            queries = lambda b, h, x, y: (b, 0, self._fetched(x, y)[0])
            keys = lambda b, h, x, y: (b, self._fetched(x, y)[1], 0)
            named["query_segments"] = (
                operands.query_segments[:, None, :],
                pl.BlockSpec((None, 1, self.block_q), queries),
            )
            named["key_segments"] = (operands.key_segments[:, :, None], pl.BlockSpec((None, self.block_k, 1), keys))
        if operands.counts is not None:
            named["counts"] = (operands.counts[:, :, None, :], self.query_t(1))
        return named


def _run(body, blocks, inputs, outputs, scratch, outer="parallel"):
    """Calls body(**refs) over the grid; interprets it where there is no TPU."""
    names = (*inputs, *outputs, *scratch)

    def kernel(*refs):
        body(**dict(zip(names, refs, strict=True)))

    def call(interpret):
        return pl.pallas_call(
            kernel,
            grid=blocks.grid,
            in_specs=[spec for _, spec in inputs.values()],
            out_specs=[spec for _, spec in outputs.values()],
            out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in outputs.values()],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", outer, "arbitrary")),
            interpret=interpret,
        )

    arrays = [array for array, _ in inputs.values()]
    results = jax.lax.platform_dependent(*arrays, tpu=call(False), default=call(True))
    return dict(zip(outputs, results, strict=True))


def _on_visible(plan, blocks, refs, work):
    """work(i, j, seen) at a grid step, unless the block is hidden."""
    outer, inner = pl.program_id(2), pl.program_id(3)
    i, j = blocks.position(outer, inner)
    first, end = blocks.visible_range(outer)

    @pl.when((inner >= first) & (inner < end))
    def _():
        value = lambda name: refs[name][...] if name in refs else None
        seen = seen_in_block(
            plan,
            i,
            j,
            (plan.blocks.keys, plan.blocks.queries),
            0,
            *(value("query_segments"), value("key_segments"), value("mask")),
        )
        if "mask" in refs or "query_segments" in refs:
            pl.when(jnp.max(jnp.where(seen, 1.0, 0.0)) > 0)(lambda: work(seen))
        else:
            work(seen)


def _logits(scale, refs, k, q_t):
    logits = scale * product(k, q_t)
    return logits + refs["bias"][...] if "bias" in refs else logits


def _counts(refs):
    return refs["counts"][...] if "counts" in refs else None


def _forward(plan, scale, operands):
    blocks = _Blocks(plan, operands, "keys")
    batch, heads, queries, width = operands.q.shape
    v_width = operands.v.shape[-1]
    inputs = blocks.inputs(operands) | {
        "q_t": (operands.q.swapaxes(-1, -2), blocks.query_t(width)),
        "k": (operands.k, blocks.key(width)),
        "v_t": (operands.v.swapaxes(-1, -2), blocks.key_t(v_width)),
    }
    outputs = {
        "out_t": ((batch, heads, v_width, queries), blocks.query_t(v_width)),
        "log_sum": ((batch, heads, 1, queries), blocks.query_t(1)),
    }
    row = (1, plan.blocks.queries)
    scratch = {"total_out": (v_width, plan.blocks.queries), "top": row, "total": row}

    def body(theta, q_t, k, v_t, out_t, log_sum, total_out, top, total, **refs):
        head, inner = pl.program_id(1), pl.program_id(3)

        @pl.when(inner == 0)
        def _():
            total_out[...] = jnp.zeros_like(total_out)
            top[...], total[...] = start(plan.score, row, jnp.float32)

        def work(seen):
            numbers = scalars_of(theta, (head,))
            logits = _logits(scale, refs, k[...], q_t[...])
            log_weights = masked_log_weights(plan.score, logits, numbers, _counts(refs), seen)
            weights, shrink, top[...], total[...] = step(plan.score, log_weights, top[...], total[...], key_axis=0)
            before = total_out[...] if shrink is None else total_out[...] * shrink
            total_out[...] = before + product(v_t[...], weights.astype(v_t.dtype))

        _on_visible(plan, blocks, refs, work)

        @pl.when(inner == blocks.grid[3] - 1)
        def _():
            out_t[...], log_sum[...] = finish(plan.score, total_out[...], top[...], total[...])

    results = _run(body, blocks, inputs, outputs, scratch)
    return results["out_t"].swapaxes(-1, -2), results["log_sum"][:, :, 0]


def _backward(plan, scale, operands, d_out, log_sums, delta):
    rows = {"d_out": d_out, "log_sum": log_sums[:, :, None], "delta": delta[:, :, None]}
    bias_shape = None if operands.bias is None else (*operands.q.shape[:2], *operands.bias.swapaxes(-1, -2).shape[2:])
    # the block of a bias that all queries share is visited again and again by the kernel that loops over queries
    bias_by_keys = bias_shape is not None and bias_shape[3] == 1 and bias_shape[2] > 1
    by_queries = _query_gradients(plan, scale, operands, rows, None if bias_by_keys else bias_shape)
    by_keys = _key_gradients(plan, scale, operands, rows, bias_shape if bias_by_keys else None)
    d_bias = None
    if operands.bias is not None:
        d_bias = (by_keys if bias_by_keys else by_queries)["d_bias"].swapaxes(-1, -2)
        broadcast = [axis for axis in (0, 1) if operands.bias.shape[axis] == 1]
        d_bias = d_bias.sum(broadcast, keepdims=True)
    d_theta = by_queries["d_theta"][:, :, 0, : operands.theta.shape[1]].sum(0)
    return by_queries["d_q_t"].swapaxes(-1, -2), by_keys["d_k"], by_keys["d_v"], d_theta, d_bias


def _gradient_body(plan, scale, blocks, refs, accumulate):
    """Clears what this grid step visits first, then accumulate(weights, d_logits, d_theta) where visible."""
    head = pl.program_id(1)
    i, j = blocks.position(pl.program_id(2), pl.program_id(3))
    if "d_bias" in refs:
        keys, queries = refs["d_bias"].shape
        first_visit = ((j == 0) | (keys > 1)) & ((i == 0) | (queries > 1))

        @pl.when(first_visit)
        def _():
            refs["d_bias"][...] = jnp.zeros_like(refs["d_bias"])

    def work(seen):
        numbers = scalars_of(refs["theta"], (head,))
        logits = _logits(scale, refs, refs["k"][...], refs["q_t"][...])
        d_weights = product(refs["v"][...], refs["d_out_t"][...])
        weights, d_logits, d_theta = backward(
            plan.score, logits, numbers, _counts(refs), seen, refs["log_sum"][...], d_weights, refs["delta"][...]
        )
        if "d_bias" in refs:
            d_bias = d_logits
            for axis, size in enumerate(refs["d_bias"].shape):
                d_bias = d_bias.sum(axis, keepdims=True) if size == 1 else d_bias
            refs["d_bias"][...] += d_bias
        accumulate(weights, d_logits, d_theta)

    _on_visible(plan, blocks, refs, work)


def _gradient_inputs(blocks, operands, rows):
    width, v_width = operands.q.shape[-1], operands.v.shape[-1]
    return blocks.inputs(operands) | {
        "q_t": (operands.q.swapaxes(-1, -2), blocks.query_t(width)),
        "k": (operands.k, blocks.key(width)),
        "v": (operands.v, blocks.key(v_width)),
        "d_out_t": (rows["d_out"].swapaxes(-1, -2), blocks.query_t(v_width)),
        "log_sum": (rows["log_sum"], blocks.query_t(1)),
        "delta": (rows["delta"], blocks.query_t(1)),
    }


def _query_gradients(plan, scale, operands, rows, bias_shape):
    blocks = _Blocks(plan, operands, "keys")
    batch, heads, queries, width = operands.q.shape
    inputs = _gradient_inputs(blocks, operands, rows)
    inputs["k_t"] = (operands.k.swapaxes(-1, -2), blocks.key_t(width))
    tile = (8, -(-operands.theta.shape[1] // LANES) * LANES)
    outputs = {
        "d_q_t": ((batch, heads, width, queries), blocks.query_t(width)),
        "d_theta": ((batch, heads, *tile), pl.BlockSpec((None, None, *tile), lambda b, h, x, y: (b, h, 0, 0))),
    }
    if bias_shape is not None:
        outputs["d_bias"] = (bias_shape, blocks.logits_t(bias_shape, fetched=False))

    def body(d_q_t, d_theta, total, k_t, **refs):
        @pl.when(pl.program_id(3) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        @pl.when((pl.program_id(2) == 0) & (pl.program_id(3) == 0))
        def _():
            d_theta[...] = jnp.zeros_like(d_theta)

        def accumulate(weights, d_logits, d_theta_here):
            total[...] += scale * product(k_t[...], d_logits.astype(k_t.dtype))
            d_theta[...] += place_scalars(d_theta_here, tile)

        _gradient_body(plan, scale, blocks, refs, accumulate)

        @pl.when(pl.program_id(3) == blocks.grid[3] - 1)
        def _():
            d_q_t[...] = total[...]

    # d_theta, and a bias that queries share, are added up over the blocks of queries too
    return _run(body, blocks, inputs, outputs, {"total": (width, plan.blocks.queries)}, outer="arbitrary")


def _key_gradients(plan, scale, operands, rows, bias_shape):
    blocks = _Blocks(plan, operands, "queries")
    batch, heads, _, width = operands.q.shape
    keys, v_width = operands.v.shape[2:]
    inputs = _gradient_inputs(blocks, operands, rows)
    inputs["q"] = (operands.q, blocks.query(width))
    inputs["d_out"] = (rows["d_out"], blocks.query(v_width))
    outputs = {
        "d_k": ((batch, heads, keys, width), blocks.key_gradient(width)),
        "d_v": ((batch, heads, keys, v_width), blocks.key_gradient(v_width)),
    }
    if bias_shape is not None:
        outputs["d_bias"] = (bias_shape, blocks.logits_t(bias_shape, fetched=False))

    def body(q, d_out, d_k, d_v, total_k, total_v, **refs):
        @pl.when(pl.program_id(3) == 0)
        def _():
            total_k[...], total_v[...] = jnp.zeros_like(total_k), jnp.zeros_like(total_v)

        def accumulate(weights, d_logits, _):
            total_k[...] += scale * product(d_logits.astype(q.dtype), q[...])
            total_v[...] += product(weights.astype(d_out.dtype), d_out[...])

        _gradient_body(plan, scale, blocks, refs, accumulate)

        @pl.when(pl.program_id(3) == blocks.grid[3] - 1)
        def _():
            d_k[...], d_v[...] = total_k[...], total_v[...]

    scratch = {"total_k": (plan.blocks.keys, width), "total_v": (plan.blocks.keys, v_width)}
    return _run(body, blocks, inputs, outputs, scratch)


_KERNEL = kernels.Kernel(
    _forward,
    _backward,
    # the ramps of a spline fill the memory that larger blocks would take
    block=lambda length, numbers: min(BLOCK if numbers <= 4 else BLOCK // 2, -(-length // LANES) * LANES),
    width=lambda width: -(-width // 16) * 16,
)
