"""Attention by whole rows, some queries at a time: for score functions that need every logit of a row at once.

Exact for sparsemax, entmax and the product family; memory is linear in T for a fixed number of queries, because the
backward pass makes the rows again.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.attention import dense
from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments, combine
from ssa_jax.scores import Params, Score

QUERIES = 128


def attend(
    q: Float[Array, "B T H E"],
    k: Float[Array, "B S G E"],
    v: Float[Array, "B S G F"],
    score: Score,
    params: Params | None = None,
    pattern: Pattern = NOTHING_HIDDEN,
    segments: Segments | None = None,
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    bias: Float[Array, "#B #H #T #S"] | None = None,
    chunk: int = QUERIES,
) -> Float[Array, "B T H F"]:
    """As `dense.attend`, `chunk` queries at a time; any score function that works on logits."""
    queries = q.shape[1]
    chunk = min(chunk, queries)
    of_queries, of_keys = segments or (None, None)
    parts = {"q": _split(q, 1, chunk), "position": jnp.arange(-(-queries // chunk) * chunk).reshape(-1, chunk)}
    if segments is not None:
        parts["segments"] = _split(of_queries, 1, chunk)
    for name, array in (("mask", mask), ("bias", bias)):
        if array is not None and array.shape[2] > 1:
            parts[name] = _split(array, 2, chunk)

    @jax.checkpoint
    def some_queries(part):
        visible = pattern.visible(part["position"][:, None], jnp.arange(k.shape[1]))
        if segments is not None:
            visible = combine(visible, (part["segments"][:, :, None] == of_keys[:, None, :])[:, None])
        visible = combine(visible, part.get("mask", mask))
        visible = None if visible is None else visible.reshape((1,) * (4 - visible.ndim) + visible.shape)
        return dense.attend(part["q"], k, v, score, params, mask=visible, bias=part.get("bias", bias))

    out = jnp.moveaxis(jax.lax.map(some_queries, parts), 0, 1)
    return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :queries]


def _split(x, axis, chunk):
    """Chunks along the axis of queries, in front, the last one padded."""
    x = jnp.pad(x, [(0, -size % chunk if i == axis else 0) for i, size in enumerate(x.shape)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, chunk, *x.shape[axis + 1 :]), axis, 0)
