"""`attend`: checks what it is given, picks a backend, and runs it."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float

from ssa_jax.attention import dense
from ssa_jax.attention.inputs import checked, per_member
from ssa_jax.attention.masks import Pattern, Segments
from ssa_jax.registry import no_such
from ssa_jax.scores import Params, Score

_RUN = {"dense": dense.attend}
BACKENDS = ("auto", *_RUN)


class Choice(NamedTuple):
    """A backend and why."""

    backend: str
    reason: str


def choose_backend(score: Score | str, queries: int, keys: int) -> Choice:
    """What `backend='auto'` runs, and why."""
    return Choice("dense", "the only backend")


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
        chosen = choose_backend(score, q.shape[1], k.shape[1]).backend if backend == "auto" else backend
        return _RUN[chosen](q, k, v, score, params, pattern, segments, mask, bias)

    return per_member(run, 2, q, k, v, score, params, mask, bias)
