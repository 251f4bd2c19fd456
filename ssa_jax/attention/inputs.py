"""What `attend` is given: checked once, and split where heads use different score functions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssa_jax import scores
from ssa_jax.attention.masks import segment_pair
from ssa_jax.scores import Kernel, Mixed


def checked(q, k, v, score, mask, segment_ids, bias):
    """The score function built, mask and bias with four axes, segments as a pair.

    Raises:
      ValueError: what does not fit, with both shapes.
    """
    batch, queries, heads, width = q.shape
    keys, groups = k.shape[1:3]
    if k.shape != (batch, keys, groups, width) or v.shape[:3] != k.shape[:3] or heads % groups:
        raise ValueError(
            f"q {q.shape}, k {k.shape}, v {v.shape} must be [B, T, H, E], [B, S, G, E], [B, S, G, F], G dividing H."
        )
    full = (batch, heads, queries, keys)
    mask, bias, segment_ids = jax.tree.map(jnp.asarray, (mask, bias, segment_ids))
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"mask has dtype {mask.dtype}: masks are boolean, True where visible; use bias to add.")
    segments = segment_pair(segment_ids)
    if segments is not None and (segments[0].shape, segments[1].shape) != ((batch, queries), (batch, keys)):
        raise ValueError(f"segment_ids {[s.shape for s in segments]} must be {(batch, queries)} and {(batch, keys)}.")
    score = scores.get(score) if isinstance(score, str) else score
    members = score.members if isinstance(score, Mixed) else (score,)
    if bias is not None and any(isinstance(member, Kernel) for member in members):
        raise ValueError(f"Score function {score.name!r} has no logits that a bias could be added to.")
    return score, _four_axes("mask", mask, full), segments, _four_axes("bias", bias, full)


def _four_axes(name, array, full):
    if array is None:
        return None
    shape = (1,) * (4 - array.ndim) + array.shape
    if len(shape) != 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ValueError(f"{name} {array.shape} does not broadcast to [B, H, T, S] = {full}.")
    return array.reshape(shape)


def per_member(run, head_axis, q, k, v, score, params, mask, bias) -> Float[Array, "..."]:
    """run(q, k, v, score, params, mask, bias), for mixed heads once a member; `head_axis` is that of the result."""
    if not isinstance(score, Mixed):
        return run(q, k, v, score, score.checked(params), mask, bias)
    heads = q.shape[2]
    k, v = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))

    def own(array, part):
        return array if array is None or array.shape[1] == 1 else array[:, part]

    outputs = [
        run(q[:, :, part], k[:, :, part], v[:, :, part], member, member.checked(held), own(mask, part), own(bias, part))
        for part, member, held in score.parts(score.checked(params), heads)
    ]
    return score.join(outputs, head_axis)
