"""A pre-norm Transformer, decoder or encoder, whose nonlinearities are named parts."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ssa_jax import attention, functions, scores
from ssa_jax.attention.masks import Pattern
from ssa_jax.models.layers import MLP, PLACES, Attention, ScoreParameters, normalization
from ssa_jax.models.nonlinearity import SHARINGS, Nonlinearity, for_hidden, part, site
from ssa_jax.models.positions import POSITIONS
from ssa_jax.registry import no_such


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); skips, norms and the MLP can each be absent."""

    attention: dict[str, Any]
    mlp: dict[str, Any] | None
    norm: str
    skip: bool
    pre_qkv: Nonlinearity | None
    dtype: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S D"], queries: int | None, segments: Int[Array, "B S"] | None
    ) -> Float[Array, "B T D"]:
        y = normalization(self.norm, "norm_attention", self.dtype)(x)
        if self.pre_qkv is not None:
            scale = self.param("pre_qkv_scale", nn.initializers.ones, ())
            shift = self.param("pre_qkv_shift", nn.initializers.zeros, ())
            y = y + self.pre_qkv(scale * y + shift)
        x = x[:, x.shape[1] - (queries or x.shape[1]) :]
        y = Attention(**self.attention, dtype=self.dtype, name="attention")(y, queries, segments)
        x = x + y if self.skip else y
        if self.mlp is None:
            return x
        y = MLP(**self.mlp, dtype=self.dtype, name="mlp")(normalization(self.norm, "norm_mlp", self.dtype)(x))
        return x + y if self.skip else y


class Transformer(nn.Module):
    """Tokens int32 [B, T] -> logits float32 [B, A, outputs] at the last `answers` positions (all when None).

    `activation` is the function of the MLP. `attention_place` says where `attention_function` enters the
    attention: 'score' (in place of exp, on the logit), 'feature' (on q and k), 'pre_qkv' (residual before the
    projections), or 'none'. `sharing`: which layers share one function. `score_in`: whether a learnable score
    function's parameters are weights ('params') or architecture ('arch').
    """

    vocab_size: int = 256
    outputs: int | None = None
    length: int = 256
    layers: int = 2
    width: int = 128
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    causal: bool = True
    answers: int | None = None
    activation: Any = "gelu"
    gated: bool = False
    sharing: str = "all_layers"
    attention_place: str = "none"
    attention_function: Any = "identity"
    score: Any = "softmax"
    score_in: str = "params"
    norm: str = "layernorm"
    positions: str = "learned"
    rope_fraction: float = 1.0
    qk_norm: bool = False
    pre_activation_norm: bool = False
    skip: bool = True
    mlp: bool = True
    bias: bool = True
    tied: bool = False
    embedding_std: float = 0.02
    dtype: str = "float32"
    remat: bool = False
    attention_backend: str = "auto"

    def check(self) -> None:
        """ValueError that names the field, its value and what is allowed."""
        for field in ("layers", "width", "heads", "kv_heads", "hidden"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise ValueError(f"{field} {getattr(self, field)} must be positive.")
        if not 0 < self.rope_fraction <= 1:
            raise ValueError(f"rope_fraction {self.rope_fraction} must be in (0, 1].")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}.")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}.")
        if self.positions == "rope" and (self.width // self.heads) % 2:
            raise ValueError(f"positions 'rope' needs an even head width, not {self.width // self.heads}.")
        if self.tied and self.outputs not in (None, self.vocab_size):
            raise ValueError(f"tied embeddings need outputs {self.outputs} to equal vocab_size {self.vocab_size}.")
        if self.tied and self.embedding_std <= 0:
            raise ValueError(f"embedding_std {self.embedding_std} must be positive.")
        if not self.mlp and self.sharing == "per_channel":
            raise ValueError("sharing 'per_channel' needs mlp True.")
        for field, allowed in (
            ("positions", POSITIONS),
            ("sharing", SHARINGS),
            ("attention_place", PLACES),
            ("score_in", ("params", "arch")),
            ("dtype", ("float32", "bfloat16")),
        ):
            if getattr(self, field) not in allowed:
                raise no_such(field, getattr(self, field), allowed)

    def backend_choice(self, T: int) -> str:
        """Which attention backend a sequence of T tokens runs on, and why."""
        if self.attention_backend != "auto":
            return f"{self.attention_backend}: as configured"
        pattern = Pattern(self.causal and self.answers in (None, T), None)
        choice = attention.choose_backend(self._score(), self.answers or T, T, pattern)
        return f"{choice.backend}: {choice.reason}"

    def _score(self) -> Any:
        """The score function, with the attention's function built in where it takes softmax's place."""
        member = {"score": "raw_spline", "feature": "feature_map"}.get(self.attention_place)
        if member is None:
            return part(scores, self.score)
        return scores.get(member, function=part(functions, self.attention_function), per="layer")

    @nn.compact
    def __call__(self, inputs: Int[Array, "B T"], segments: Int[Array, "B T"] | None = None) -> Float[Array, "B A V"]:
        T, dtype = inputs.shape[1], jnp.dtype(self.dtype)
        if self.length < T:
            raise ValueError(f"Sequence of {T} tokens exceeds the model's length {self.length}.")
        embed = nn.Embed(
            self.vocab_size,
            self.width,
            embedding_init=nn.initializers.normal(self.embedding_std),
            dtype=dtype,
            name="embedding",
        )
        x = embed(inputs)
        if self.positions == "learned":
            table = self.param("positions", nn.initializers.normal(self.embedding_std), (self.length, self.width))
            x = x + table[:T].astype(dtype)
        block_type = nn.remat(Block, static_argnums=(2,)) if self.remat else Block
        for layer, parts in enumerate(self._parts(dtype)):
            last = layer == self.layers - 1
            x = block_type(**parts, name=f"block_{layer}")(x, self.answers if last else None, segments)
        x = normalization(self.norm, "norm_final", dtype)(x).astype(jnp.float32)
        if self.tied:
            return x @ embed.embedding.T
        init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        return nn.Dense(self.outputs or self.vocab_size, use_bias=False, kernel_init=init, name="readout")(x)

    def _parts(self, dtype: Any) -> list[dict[str, Any]]:
        """What each block is made of; blocks that share a function hold the same module instance."""
        sites: dict[str, Nonlinearity] = {}

        def at(place: str, layer: int, function: Any) -> Nonlinearity:
            name = site(place, layer, self.layers, self.sharing)
            if name not in sites:
                sites[name] = Nonlinearity(function, name=name)
            return sites[name]

        gain, hidden = self.layers**-0.5, self.hidden or 4 * self.width
        activation = for_hidden(part(functions, self.activation), self.sharing, hidden)
        inner = part(functions, self.attention_function)
        score = self._score()
        score_in = "arch" if self.attention_place in ("score", "feature") else self.score_in
        score_sharing = "per_layer" if score_in == "params" or self.sharing == "per_channel" else self.sharing
        score_sites: dict[str, ScoreParameters] = {}
        blocks = []
        for layer in range(self.layers):
            score_site = site("score", layer, self.layers, score_sharing)
            if score.learnable and score_site not in score_sites:
                score_sites[score_site] = ScoreParameters(score, self.heads, score_in, name=score_site)
            attention = dict(
                heads=self.heads,
                kv_heads=self.kv_heads or self.heads,
                causal=self.causal,
                positions=self.positions,
                score=score,
                score_parameters=score_sites.get(score_site),
                qk_norm=self.qk_norm,
                rope_fraction=self.rope_fraction,
                bias=self.bias,
                gain=gain,
                backend=self.attention_backend,
            )
            mlp = dict(
                hidden=hidden,
                function=at("mlp", layer, activation),
                gated=self.gated,
                normalize=self.pre_activation_norm,
                bias=self.bias,
                gain=gain,
            )
            blocks.append(
                dict(
                    attention=attention,
                    mlp=mlp if self.mlp else None,
                    norm=self.norm,
                    skip=self.skip,
                    pre_qkv=at("pre_qkv", layer, inner) if self.attention_place == "pre_qkv" else None,
                    dtype=dtype,
                )
            )
        return blocks
