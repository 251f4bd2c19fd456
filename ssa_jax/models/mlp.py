"""The small MLP model: positions' embeddings side by side, hidden layers, one answer."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ssa_jax import functions
from ssa_jax.models.layers import rms_normalize
from ssa_jax.models.nonlinearity import SHARINGS, Nonlinearity, for_hidden, part, site
from ssa_jax.registry import no_such


class MLPModel(nn.Module):
    """Tokens int32 [B, T] -> logits float32 [B, 1, outputs].

    width > 0: each position has its own embedding table [V, D]; the T vectors are concatenated.
    width = 0: binary tokens are read as -1 and +1. `pre_activation_norm` RMS-normalises what the function receives.
    """

    vocab_size: int = 256
    outputs: int | None = None
    length: int = 2
    width: int = 32
    hidden: int = 128
    layers: int = 1
    answers: int | None = 1
    activation: Any = "gelu"
    sharing: str = "all_layers"
    pre_activation_norm: bool = False
    embedding_std: float = 0.1

    def check(self) -> None:
        """ValueError that names the field, its value and what is allowed."""
        for field in ("hidden", "layers"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} {getattr(self, field)} must be positive.")
        if self.sharing not in SHARINGS:
            raise no_such("sharing", self.sharing, SHARINGS)
        if self.width == 0 and self.vocab_size != 2:
            raise ValueError(f"width 0 reads bits as signs and needs vocab_size 2, not {self.vocab_size}.")
        if self.answers not in (1, None):
            raise ValueError(f"The MLP model gives one answer; the task has {self.answers} answer positions.")

    @nn.compact
    def __call__(self, inputs: Int[Array, "B T"]) -> Float[Array, "B 1 V"]:
        B, T = inputs.shape
        if self.width:
            table = self.param(
                "embedding", nn.initializers.normal(self.embedding_std), (self.length, self.vocab_size, self.width)
            )
            x = table[jnp.arange(T), inputs].reshape(B, T * self.width)
        else:
            x = 2.0 * inputs - 1.0
        init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        activation = for_hidden(part(functions, self.activation), self.sharing, self.hidden)
        sites: dict[str, Nonlinearity] = {}
        for layer in range(self.layers):
            name = site("mlp", layer, self.layers, self.sharing)
            if name not in sites:
                sites[name] = Nonlinearity(activation, name=name)
            x = nn.Dense(self.hidden, kernel_init=init, name=f"hidden_{layer}")(x)
            x = sites[name](rms_normalize(x) if self.pre_activation_norm else x)
        return nn.Dense(self.outputs or self.vocab_size, use_bias=False, kernel_init=init, name="readout")(x)[:, None]
