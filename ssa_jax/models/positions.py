"""How a Transformer knows where a token stands: rotations (RoPE) and linear penalties (ALiBi)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

POSITIONS = ("learned", "rope", "alibi", "none")


def rotate(
    x: Float[Array, "B T H E"], start: int = 0, fraction: float = 1.0, base: float = 1e4
) -> Float[Array, "B T H E"]:
    """RoPE (Su et al. 2021), half-split layout: pairs (e, e + E/2) turn by position / base^(2e/E).

    `start` is the position of the first row; only the first `fraction` of the head is rotated.
    """
    T, E = x.shape[1], x.shape[-1]
    rotated = 2 * int(E * fraction / 2)
    frequency = base ** (-jnp.arange(0, rotated, 2) / rotated)
    angle = ((start + jnp.arange(T))[:, None] * frequency)[:, None, :]
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second, rest = jnp.split(x, [rotated // 2, rotated], axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)


def alibi(heads: int, queries: int, keys: int) -> Float[Array, "1 H T S"]:
    """ALiBi (Press et al. 2022): logits lose slope_h |t - s|, slopes 2^(-8 h / H); queries are the last positions."""
    slope = 2.0 ** (-8.0 * jnp.arange(1, heads + 1) / heads)
    distance = jnp.abs((keys - queries + jnp.arange(queries))[:, None] - jnp.arange(keys)[None, :])
    return -(slope[:, None, None] * distance)[None]
