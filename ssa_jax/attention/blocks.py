"""How blockwise attention cuts its arrays, and which parts of them each block sees."""

import dataclasses
import os

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.attention.masks import Pattern, combine
from ssa_jax.scores import LogWeight

Hidden = dict[str, Array | tuple[Array, Array] | None]


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes: queries and keys a block, and how many batch elements (n in shapes) and heads (h) go together."""

    queries: int
    keys: int
    batches: int
    heads: int


def default_blocks(batch: int, heads: int, queries: int, keys: int) -> Blocks:
    """Blocks that stay in the cache of a CPU's cores while all cores have work.

    128 x 128 float32 logits are 64 KiB; XLA gives a core at least 256 KiB of an elementwise result, hence four rows
    (batch elements times heads) a core. Elsewhere all rows go together.
    """
    rows = 4 * (os.cpu_count() or 1) if jax.default_backend() == "cpu" else batch * heads
    together = _divisor(heads, rows)
    batches = _divisor(batch, rows // together) if together == heads else 1
    return Blocks(min(128, -(-queries // 8) * 8), min(128, -(-keys // 8) * 8), batches, together)


def _divisor(whole: int, most: int) -> int:
    return max(part for part in range(1, max(most, 1) + 1) if whole % part == 0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static: the score function, the pattern, the sizes of [B, T, H, E] against [B, S, H, E], the blocks."""

    score: LogWeight
    pattern: Pattern
    batch: int
    heads: int
    queries: int
    keys: int
    blocks: Blocks

    @property
    def units(self) -> int:
        """Units are what is computed together: `blocks.batches` batch elements by `blocks.heads` heads."""
        return self.batch // self.blocks.batches * (self.heads // self.blocks.heads)

    @property
    def query_blocks(self) -> int:
        return -(-self.queries // self.blocks.queries)

    @property
    def key_blocks(self) -> int:
        return -(-self.keys // self.blocks.keys)

    def key_range(self, i):
        """First key block that query block i sees by the pattern, and the one after the last."""
        back, ahead = self.pattern.reach()
        first = 0 if back is None else quotient(jnp.maximum(i * self.blocks.queries - back, 0), self.blocks.keys)
        last = (i + 1) * self.blocks.queries - 1
        end = self.key_blocks if ahead is None else quotient(last + ahead, self.blocks.keys) + 1
        return first, jnp.minimum(end, self.key_blocks)

    def query_range(self, j):
        """First query block that sees key block j by the pattern, and the one after the last."""
        back, ahead = self.pattern.reach()
        first = 0 if ahead is None else quotient(jnp.maximum(j * self.blocks.keys - ahead, 0), self.blocks.queries)
        last = (j + 1) * self.blocks.keys - 1
        end = self.query_blocks if back is None else quotient(last + back, self.blocks.queries) + 1
        return first, jnp.minimum(end, self.query_blocks)

    def corner(self, unit):
        """First batch element and first head of a unit."""
        per_batch = self.heads // self.blocks.heads
        return unit // per_batch * self.blocks.batches, unit % per_batch * self.blocks.heads


def quotient(index, size: int):
    """index // size for an index that is not negative; kernels have no other cheap division."""
    index = jnp.asarray(index)
    return jax.lax.div(index, jnp.asarray(size, index.dtype))


def visible(plan: Plan, hidden: Hidden, unit, i, j) -> Bool[Array, "#n #h #s #t"] | None:
    """Which keys of block j each query of block i sees; None where all."""
    queries = i * plan.blocks.queries + jnp.arange(plan.blocks.queries)[None, None, None, :]
    keys = j * plan.blocks.keys + jnp.arange(plan.blocks.keys)[None, None, :, None]
    inside = keys < plan.keys if plan.keys % plan.blocks.keys else None
    return combine(plan.pattern.visible(queries, keys), inside, visible_by_data(plan, hidden, unit, i, j))


def visible_by_data(plan: Plan, hidden: Hidden, unit, i, j) -> Bool[Array, "#n #h #s #t"] | None:
    """The part of `visible` that mask and segments decide."""
    same = None
    if hidden["segments"] is not None:
        first, _ = plan.corner(unit)
        of_queries, of_keys = (
            jax.lax.dynamic_slice_in_dim(side, first, plan.blocks.batches)[:, block]
            for side, block in zip(hidden["segments"], (i, j), strict=True)
        )
        same = (of_keys[:, :, None] == of_queries[:, None, :])[:, None]
    return combine(same, None if hidden["mask"] is None else block_of(hidden["mask"], plan, unit, i, j))


def to_blocks(x: Float[Array, "B T H E"], plan: Plan, block: int) -> Float[Array, "unit block n h t E"]:
    """Pads with zeros to whole blocks and puts units first."""
    length, width = x.shape[1], x.shape[3]
    batches, heads = plan.blocks.batches, plan.blocks.heads
    x = jnp.pad(x, ((0, 0), (0, -length % block), (0, 0), (0, 0)))
    x = x.reshape(plan.batch // batches, batches, -1, block, plan.heads // heads, heads, width)
    return x.transpose(0, 4, 2, 1, 5, 3, 6).reshape(plan.units, -1, batches, heads, block, width)


def from_blocks(x: Float[Array, "unit block n h t E"], plan: Plan, length: int) -> Float[Array, "B T H E"]:
    """The inverse of `to_blocks`."""
    _, blocks, batches, heads, block, width = x.shape
    x = x.reshape(plan.batch // batches, plan.heads // heads, blocks, batches, heads, block, width)
    return x.transpose(0, 3, 2, 5, 1, 4, 6).reshape(plan.batch, blocks * block, plan.heads, width)[:, :length]


def theta_of_units(theta: Float[Array, "P H"], plan: Plan) -> Float[Array, "unit P h 1 1"]:
    """Each unit's numbers of the score function, to broadcast against its logits."""
    numbers, per_batch = theta.shape[0], plan.heads // plan.blocks.heads
    theta = theta.reshape(numbers, per_batch, plan.blocks.heads).transpose(1, 0, 2)[..., None, None]
    return jnp.tile(theta, (plan.units // per_batch, 1, 1, 1, 1))


def theta_from_units(theta: Float[Array, "unit P h 1 1"], plan: Plan) -> Float[Array, "P H"]:
    """The transpose of `theta_of_units`: adds up what several batch elements give to one head."""
    numbers, per_batch = theta.shape[1], plan.heads // plan.blocks.heads
    theta = theta.reshape(plan.units // per_batch, per_batch, numbers, plan.blocks.heads).sum(0)
    return theta.transpose(1, 0, 2).reshape(numbers, plan.heads)


def segment_blocks(segments, plan: Plan) -> tuple[Array, Array]:
    """Both sides cut into blocks; what is padded belongs to no segment of the other side."""
    sides = zip(segments, (plan.blocks.queries, plan.blocks.keys), (-1, -2), strict=True)
    return tuple(
        jnp.pad(side, ((0, 0), (0, -side.shape[1] % block)), constant_values=none).reshape(plan.batch, -1, block)
        for side, block, none in sides
    )


def whole_blocks(x: Array, plan: Plan) -> Array:
    """Pads the axes of x[B or 1, H or 1, T or 1, S or 1] that are not broadcast to whole blocks."""
    sizes = (plan.blocks.queries, plan.blocks.keys)
    tails = [0 if size == 1 else -size % block for size, block in zip(x.shape[2:], sizes, strict=True)]
    return jnp.pad(x, ((0, 0), (0, 0), (0, tails[0]), (0, tails[1])))


def block_of(x: Array, plan: Plan, unit, i, j) -> Array:
    """Block (i, j) of an array that broadcasts to [B, H, T, S], keys by queries."""
    return jax.lax.dynamic_slice(x, *_place(x, plan, unit, i, j)).swapaxes(-1, -2)


def add_block(x: Array, block: Float[Array, "n h s t"], plan: Plan, unit, i, j) -> Array:
    """x with a block added at (i, j), summed over the axes along which x is broadcast."""
    start, sizes = _place(x, plan, unit, i, j)
    block = block.swapaxes(-1, -2)
    block = block.sum([axis for axis, size in enumerate(sizes) if size < block.shape[axis]], keepdims=True)
    return jax.lax.dynamic_update_slice(x, jax.lax.dynamic_slice(x, start, sizes) + block, start)


def _place(x, plan, unit, i, j):
    """Where block (i, j) of a unit begins in x, and its sizes there."""
    blocks = plan.blocks
    start = (*plan.corner(unit), i * blocks.queries, j * blocks.keys)
    sizes = (blocks.batches, blocks.heads, blocks.queries, blocks.keys)
    kept = [size > 1 for size in x.shape]
    return [at if keep else 0 for at, keep in zip(start, kept, strict=True)], [
        size if keep else 1 for size, keep in zip(sizes, kept, strict=True)
    ]
