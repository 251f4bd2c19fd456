"""Kernel attention in linear time: sum_j phi(q_i) (phi(k_j) v_j) / sum_j phi(q_i) phi(k_j), sums before products.

Causal sums run over chunks: inside a chunk products are masked, before it stands the sum of phi(k) v of all chunks
before. All chunks are computed at once, so that only a cumulative sum of small matrices follows the order of T.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments
from ssa_jax.scores import Kernel, Params
from ssa_jax.scores.base import safe_divide
from ssa_jax.scores.kernel import FLOOR

CHUNK = 128


def refusal(pattern: Pattern, segments, mask) -> str | None:
    """Why running sums cannot express this visibility; None if they can."""
    if pattern.window is not None:
        return "a window"
    if segments is not None:
        return "segments"
    if mask is not None and mask.shape[2] > 1:
        return "a mask that differs between queries"
    return None


def attend(
    q: Float[Array, "B T H E"],
    k: Float[Array, "B S G E"],
    v: Float[Array, "B S G F"],
    score: Kernel,
    params: Params | None = None,
    pattern: Pattern = NOTHING_HIDDEN,
    segments: Segments | None = None,
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    bias: None = None,
) -> Float[Array, "B T H F"]:
    """As `dense.attend`, in time and memory linear in T: causal or not, with a mask over keys.

    Raises:
      ValueError: a visibility that running sums cannot express.
    """
    if (reason := refusal(pattern, segments, mask)) is not None:
        raise ValueError(f"Linear-time attention cannot take {reason}: use backend='dense'.")
    queries, keys, heads = q.shape[1], k.shape[1], q.shape[2]
    q, k, v = (_heads_first(x, heads) for x in (q, k, v))
    params = score.checked(params)
    phi_q, phi_k = (score.features(x, params, max(queries, keys)) for x in (q, k))
    if mask is not None:
        phi_k = jnp.where(mask.swapaxes(-1, -2), phi_k, 0)
    # one column of ones more: the denominator is the numerator of a value 1
    v_and_one = jnp.concatenate([v.astype(phi_k.dtype), jnp.ones((*v.shape[:-1], 1), phi_k.dtype)], axis=-1)
    sums = _causal_sums(phi_q, phi_k, v_and_one) if pattern.causal else phi_q @ (phi_k.swapaxes(-1, -2) @ v_and_one)
    return safe_divide(sums[..., :-1], sums[..., -1:], FLOOR).transpose(0, 2, 1, 3).astype(v.dtype)


def _heads_first(x, heads):
    return jnp.repeat(x, heads // x.shape[2], axis=2).transpose(0, 2, 1, 3)


def _causal_sums(phi_q, phi_k, v):
    """sum over j <= i of (phi_q_i . phi_k_j) v_j; keys beyond the last query are seen by none."""
    queries = phi_q.shape[2]
    size = min(CHUNK, queries)
    padded = -(-queries // size) * size
    phi_q, phi_k, v = (_chunks(x, padded, size) for x in (phi_q, phi_k, v))
    within = jnp.where(jnp.tri(size, dtype=bool), phi_q @ phi_k.swapaxes(-1, -2), 0) @ v
    states = phi_k.swapaxes(-1, -2) @ v
    before = jnp.pad(jnp.cumsum(states, axis=2)[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))
    sums = within + phi_q @ before
    return sums.reshape(*sums.shape[:2], padded, -1)[:, :, :queries]


def _chunks(x, length, size):
    x = x[:, :, :length]
    x = jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, 0)))
    return x.reshape(*x.shape[:2], length // size, size, x.shape[-1])
