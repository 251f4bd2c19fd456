"""The parts of a Transformer block: normalisation, attention with its functions, and the MLP."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ssa_jax import attention
from ssa_jax.models.nonlinearity import Nonlinearity
from ssa_jax.models.positions import alibi, rotate
from ssa_jax.registry import no_such

NORMS = ("layernorm", "rmsnorm", "none")
PLACES = ("none", "score", "feature", "pre_qkv")


def rms_normalize(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + 1e-6) over the last axis, computed in float32, without a gain."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def normalization(kind: str, name: str, dtype: Any) -> Any:
    """The normalisation layer `kind`: one of NORMS."""
    if kind == "layernorm":
        return nn.LayerNorm(dtype=dtype, name=name)
    if kind == "rmsnorm":
        return nn.RMSNorm(dtype=dtype, name=name)
    if kind == "none":
        return lambda x: x
    raise no_such("norm", kind, NORMS)


def dense(features: int, name: str, dtype: Any, bias: bool = True, gain: float = 1.0) -> nn.Dense:
    """A linear layer whose weights start as N(0, gain^2 / fan_in)."""
    init = nn.initializers.variance_scaling(gain**2, "fan_in", "normal")
    return nn.Dense(features, use_bias=bias, kernel_init=init, dtype=dtype, name=name)


class ScoreParameters(nn.Module):
    """Parameters of a score function, in `params` (learned with the weights) or in `arch`; layers may share them.

    Where the collection `support` is mutable, a score function built on a spline records what it is applied to.
    """

    score: Any
    heads: int
    collection: str

    @nn.compact
    def __call__(
        self,
        q: Float[Array, "B T H E"],
        k: Float[Array, "B S G E"],
        visible: Bool[Array, "#B 1 T S"] | None = None,
        bias: Float[Array, "1 H T S"] | None = None,
    ) -> Any:
        function = getattr(self.score, "function", None)
        if self.is_mutable_collection("support") and hasattr(function, "support") and not self.is_initializing():
            if self.score.family == "kernel":
                self.sow("support", "visits", function.support(jnp.concatenate([q.ravel(), k.ravel()])))
            else:
                self.sow("support", "visits", _visible_support(function, q, k, visible, bias))
        if self.collection == "arch":
            return self.variable("arch", "score", lambda: self.score.init(self.heads)).value
        return self.param("score", lambda key: self.score.init(self.heads))


def _visible_support(function: Any, q: Array, k: Array, visible: Array | None, bias: Array | None) -> dict[str, Array]:
    """`function.support` of the logits that the mask lets through."""
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
    logits = jnp.einsum("bthe,bshe->bhts", q, k) / q.shape[-1] ** 0.5 + (0.0 if bias is None else bias)
    visible = jnp.broadcast_to(True if visible is None else visible, logits.shape)
    counts = function.support(jnp.where(visible, logits, jnp.nan))["counts"]
    return {"counts": counts, "outside": 1 - counts.sum() / visible.sum()}


class Attention(nn.Module):
    """Multi-head attention with a chosen score function; `queries` restricts the result to that many last positions."""

    heads: int
    kv_heads: int
    causal: bool
    positions: str
    score: Any
    score_parameters: ScoreParameters | None = None
    qk_norm: bool = False
    rope_fraction: float = 1.0
    bias: bool = True
    gain: float = 1.0
    dtype: Any = jnp.float32
    backend: str = "auto"

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S D"], queries: int | None = None, segments: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B T D"]:
        B, S, D = x.shape
        T, E = queries or S, D // self.heads
        q = dense(self.heads * E, "query", self.dtype, self.bias)(x[:, S - T :]).reshape(B, T, self.heads, E)
        k = dense(self.kv_heads * E, "key", self.dtype, self.bias)(x).reshape(B, S, self.kv_heads, E)
        v = dense(self.kv_heads * E, "value", self.dtype, self.bias)(x).reshape(B, S, self.kv_heads, E)
        if self.qk_norm:
            q, k = rms_normalize(q), rms_normalize(k)
        if self.positions == "rope":
            q, k = rotate(q, S - T, self.rope_fraction), rotate(k, 0, self.rope_fraction)
        # fewer queries than keys: they are the last positions, which `attend` cannot know
        past = S - T + jnp.arange(T)[:, None] >= jnp.arange(S) if self.causal else jnp.ones((T, S), bool)
        same = True if segments is None else segments[:, None, S - T :, None] == segments[:, None, None, :]
        bias = alibi(self.heads, T, S) if self.positions == "alibi" else None
        out = attention.attend(
            q,
            k,
            v,
            score=self.score,
            params=self.score_parameters(q, k, past & same, bias) if self.score_parameters is not None else {},
            mask=past if self.causal and T < S else None,
            causal=self.causal and T == S,
            segment_ids=None if segments is None else (segments[:, S - T :], segments),
            bias=bias,
            backend=self.backend,
        )
        return dense(D, "out", self.dtype, self.bias, self.gain)(out.reshape(B, T, self.heads * E))


class MLP(nn.Module):
    """W2 f(W1 x); gated: W2 (f(W1 x) * W3 x) (GLU). `normalize` RMS-normalises what f receives."""

    hidden: int
    function: Nonlinearity
    gated: bool = False
    normalize: bool = False
    bias: bool = True
    gain: float = 1.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        h = dense(self.hidden, "in", self.dtype, self.bias)(x)
        h = self.function(rms_normalize(h) if self.normalize else h)
        if self.gated:
            h = h * dense(self.hidden, "linear", self.dtype, self.bias)(x)
        return dense(x.shape[-1], "out", self.dtype, self.bias, self.gain)(h)
