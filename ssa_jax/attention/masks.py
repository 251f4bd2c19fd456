"""Which keys a query sees: one meaning of causal, window, segments and mask for every backend."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class Pattern:
    """What is known about visibility before any array is: query i may see key j only if ...

    causal: j <= i. window: |i - j| < window; with causal these are the last `window` tokens, itself included.
    """

    causal: bool = False
    window: int | None = None

    def __post_init__(self):
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1 token.")

    def reach(self) -> tuple[int | None, int | None]:
        """How many tokens back and ahead a query sees; None is without limit."""
        back = None if self.window is None else self.window - 1
        return back, 0 if self.causal else back

    def visible(self, queries: Int[Array, "..."], keys: Int[Array, "..."]) -> Bool[Array, "..."] | None:
        """The pattern at positions that broadcast against each other; None where it hides nothing."""
        back, ahead = self.reach()
        parts = [] if ahead is None else [keys - queries <= ahead]
        parts += [] if back is None else [queries - keys <= back]
        return combine(*parts)


NOTHING_HIDDEN = Pattern()
Segments = Int[Array, "B T"] | tuple[Int[Array, "B T"], Int[Array, "B S"]]


def segment_pair(segment_ids: Segments | None) -> tuple[Int[Array, "B T"], Int[Array, "B S"]] | None:
    """Segments of queries and of keys; one array serves both."""
    return segment_ids if isinstance(segment_ids, tuple | None) else (segment_ids, segment_ids)


def combine(*parts: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """The conjunction of the parts that are given; None if none is."""
    result = None
    for part in parts:
        if part is not None:
            result = part if result is None else result & part
    return result


def visibility(
    queries: int,
    keys: int,
    pattern: Pattern,
    segment_ids: Segments | None = None,
    mask: Bool[Array, "#B #H #T #S"] | None = None,
) -> Bool[Array, "#B #H #T #S"] | None:
    """The whole mask, materialised; None where every query sees every key."""
    segments = segment_pair(segment_ids)
    same = None if segments is None else (segments[0][:, :, None] == segments[1][:, None, :])[:, None]
    return combine(pattern.visible(jnp.arange(queries)[:, None], jnp.arange(keys)), same, mask)


def key_counts(
    queries: int,
    keys: int,
    pattern: Pattern,
    segments: tuple[Int[Array, "B T"], Int[Array, "B S"]] | None = None,
    mask: Bool[Array, "#B #H #T #S"] | None = None,
    chunk: int = 128,
) -> Float[Array, "#B #H T"]:
    """How many keys each query sees, at least 1; the mask is made for `chunk` queries at a time."""
    if segments is None and mask is None:
        back, ahead = pattern.reach()
        position = jnp.arange(queries)
        first = 0 if back is None else jnp.maximum(position - back, 0)
        last = keys - 1 if ahead is None else jnp.minimum(position + ahead, keys - 1)
        return jnp.broadcast_to(last - first + 1, (queries,)).clip(1).astype(jnp.float32)[None, None]
    padded = -(-queries // chunk) * chunk
    position = jnp.arange(padded).reshape(-1, chunk)

    def count(position):
        row = jnp.minimum(position, queries - 1)
        same = None if segments is None else (segments[0][:, row, None] == segments[1][:, None, :])[:, None]
        own = mask if mask is None or mask.shape[2] == 1 else mask[:, :, row]
        seen = combine(pattern.visible(position[:, None], jnp.arange(keys)), same, own)
        batch, heads = seen.shape[:2] if seen.ndim == 4 else (1, 1)
        return jnp.broadcast_to(seen, (batch, heads, chunk, keys)).sum(-1)

    counts = jnp.moveaxis(jax.lax.map(count, position), 0, 2)
    return counts.reshape(*counts.shape[:2], padded)[..., :queries].clip(1).astype(jnp.float32)
