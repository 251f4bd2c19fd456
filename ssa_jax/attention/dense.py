"""Attention with materialised weights: the reference for every backend, for any family, and the tool for analysis."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.attention.inputs import checked, per_member
from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments, visibility
from ssa_jax.scores import Kernel, Params, Score
from ssa_jax.scores.base import compute_dtype


def attention_weights(
    q: Float[Array, "B T H E"],
    k: Float[Array, "B S G E"],
    *,
    score: Score | str = "softmax",
    params: Params | None = None,
    mask: Bool[Array, "..."] | None = None,
    causal: bool = False,
    window: int | None = None,
    segment_ids: Segments | None = None,
    bias: Float[Array, "..."] | None = None,
) -> Float[Array, "B H T S"]:
    """The weights that `attend` multiplies v with, in float32 (float64 for float64); arguments as there."""
    score, mask, segments, bias = checked(q, k, k, score, mask, segment_ids, bias)
    pattern = Pattern(causal, window)

    def run(q, k, v, score, params, mask, bias):
        return _weights(q, k, score, params, visibility(q.shape[1], k.shape[1], pattern, segments, mask), bias)

    return per_member(run, 1, q, k, k, score, params, mask, bias)


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
) -> Float[Array, "B T H F"]:
    """out_i = sum_j weights_ij v_j, accumulated in float32 (float64 for float64), in v's dtype."""
    weights = _weights(q, k, score, params, visibility(q.shape[1], k.shape[1], pattern, segments, mask), bias)
    batch, heads, queries, keys = weights.shape
    groups = v.shape[2]
    grouped = weights.reshape(batch, groups, heads // groups, queries, keys).astype(v.dtype)
    out = jnp.einsum("bgrts,bsgf->btgrf", grouped, v, preferred_element_type=compute_dtype(v.dtype))
    return out.reshape(batch, queries, heads, v.shape[-1]).astype(v.dtype)


def _weights(q, k, score, params, visible, bias):
    if isinstance(score, Kernel):
        return _kernel_weights(q, k, score, params, visible)
    batch, queries, heads, width = q.shape
    keys, groups = k.shape[1:3]
    grouped = q.reshape(batch, queries, groups, heads // groups, width)
    products = jnp.einsum("btgre,bsge->bgrts", grouped, k, preferred_element_type=compute_dtype(q.dtype))
    logits = products.reshape(batch, heads, queries, keys) / math.sqrt(width)
    return score.weights(logits if bias is None else logits + bias.astype(logits.dtype), visible, params)


def _kernel_weights(q, k, score, params, visible):
    heads_first = (0, 2, 1, 3)
    params = score.checked(params)
    length = max(q.shape[1], k.shape[1])
    phi_q = score.features(q.transpose(heads_first), params, length)
    phi_k = score.features(jnp.repeat(k, q.shape[2] // k.shape[2], axis=2).transpose(heads_first), params, length)
    products = jnp.einsum("bhtf,bhsf->bhts", phi_q, phi_k)
    return score.products_to_weights(products, jnp.ones((), bool) if visible is None else visible)
