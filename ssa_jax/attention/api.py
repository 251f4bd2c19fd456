"""`attend`: checks what it is given, picks a backend, and runs it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssa_jax import scores
from ssa_jax.attention import blockwise, dense, linear, pallas_gpu, pallas_tpu, rows
from ssa_jax.attention.inputs import checked, per_member
from ssa_jax.attention.masks import NOTHING_HIDDEN, Pattern, Segments
from ssa_jax.registry import no_such
from ssa_jax.scores import Mixed, Params, Score

# for each backend: what runs it, and the families that it can run
_BACKENDS = {
    "dense": (dense.attend, ("log-weight", "simplex", "kernel", "product")),
    "blockwise": (blockwise.attend, ("log-weight",)),
    "pallas_gpu": (pallas_gpu.attend, ("log-weight",)),
    "pallas_tpu": (pallas_tpu.attend, ("log-weight",)),
    "rows": (rows.attend, ("log-weight", "simplex", "product")),
    "linear": (linear.attend, ("kernel",)),
}
BACKENDS = ("auto", *_BACKENDS)
_KERNELS = {"gpu": "pallas_gpu", "tpu": "pallas_tpu"}
SHORT = 64 * 128
"""Logits a head, up to which materialised weights are at least as fast as blocks (measured on a CPU)."""


class Choice(NamedTuple):
    """A backend and why."""

    backend: str
    reason: str


def choose_backend(
    score: Score | str,
    queries: int,
    keys: int,
    pattern: Pattern = NOTHING_HIDDEN,
    segments: Segments | None = None,
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    platform: str | None = None,
) -> Choice:
    """What `backend='auto'` runs, and why.

    Args:
      platform: 'cpu', 'gpu' or 'tpu'; None is where jax runs.
    """
    platform = platform or jax.default_backend()
    score = scores.get(score) if isinstance(score, str) else score
    if isinstance(score, Mixed):
        choices = [choose_backend(member, queries, keys, pattern, segments, mask, platform) for member in score.members]
        parts = (f"{member.name}: {choice.backend}" for member, choice in zip(score.members, choices, strict=True))
        return Choice("by head", ", ".join(parts))
    logits = f"{queries} x {keys} logits a head"
    if queries * keys <= SHORT:
        return Choice("dense", f"{logits} are few enough to materialise")
    if score.family == "kernel":
        reason = linear.refusal(pattern, segments, mask)
        if reason is None:
            return Choice("linear", "features of queries and keys: running sums in linear time")
        return Choice("dense", f"running sums cannot take {reason}")
    if score.family != "log-weight":
        return Choice("rows", f"{score.family} score needs whole rows, {logits}: some at a time")
    if platform not in _KERNELS:
        return Choice("blockwise", f"log-weight score, {logits}: blocks in linear memory")
    if not one_device():
        return Choice("blockwise", f"the compiler cannot split {platform} kernels over devices outside shard_map")
    return Choice(_KERNELS[platform], f"log-weight score, {logits}: the kernel for {platform}")


def one_device() -> bool:
    """Whether code traced here runs on one device: there is no other, or we are inside shard_map."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.device_count() == 1 or (bool(mesh.axis_names) and set(mesh.manual_axes) == set(mesh.axis_names))


def attend(
    q: Float[Array, "B T H E"],
    k: Float[Array, "B S G E"],
    v: Float[Array, "B S G F"],
    *,
    score: Score | str = "softmax",
    params: Params | None = None,
    mask: Bool[Array, "..."] | None = None,
    causal: bool = False,
    window: int | None = None,
    segment_ids: Segments | None = None,
    bias: Float[Array, "..."] | None = None,
    backend: str = "auto",
) -> Float[Array, "B T H F"]:
    """Attention with any score function: out_i = sum_j weights(q_i.k_j / sqrt(E) + bias)_ij v_j.

    Args:
      q, k, v: keys and values may have fewer heads G, a divisor of H: query head h reads head h // (H / G).
      score: a name or what `scores.get` built.
      params: of the score function, leading axis H, as `score.init(H)` gives them.
      mask: True where a key is visible, broadcastable to [B, H, T, S].
      causal: query i sees keys j <= i.
      window: query i sees keys with |i - j| < window; with causal these are the last `window` tokens.
      segment_ids: integers [B, T]; a token sees its own segment only. A pair where queries and keys differ.
      bias: added to the logits, broadcastable to [B, H, T, S]; differentiable.
      backend: one of `BACKENDS`; 'auto' is what `choose_backend` says.

    Returns:
      In v's dtype; accumulated in float32 (float64 for float64). A query that sees no key gives zeros.

    Raises:
      ValueError: shapes that do not fit, an unknown backend, or one that cannot run this score function.
    """
    if backend not in BACKENDS:
        raise no_such("attention backend", backend, BACKENDS)
    score, mask, segments, bias = checked(q, k, v, score, mask, segment_ids, bias)
    pattern = Pattern(causal, window)

    def run(q, k, v, score, params, mask, bias):
        chosen = backend
        if backend == "auto":
            chosen = choose_backend(score, q.shape[1], k.shape[1], pattern, segments, mask).backend
            if q.dtype == jnp.float64 and chosen in _KERNELS.values():
                chosen = "blockwise"
        attend_by, families = _BACKENDS[chosen]
        if score.family not in families:
            able = [name for name, (_, families) in _BACKENDS.items() if score.family in families]
            raise ValueError(f"{chosen!r} cannot run {score.name!r} of family {score.family}. Allowed: {able}.")
        return attend_by(q, k, v, score, params, pattern, segments, mask, bias)

    return per_member(run, 2, q, k, v, score, params, mask, bias)
