"""Writing backwards, a control."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ssa_jax.tasks.registry import registry
from ssa_jax.tasks.sequences import Sequences


@registry.register("reverse")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Reverse(Sequences):
    """Writes the symbols from the last to the first: b a d ; -> d a b . Our setting."""

    name: ClassVar[str] = "reverse"

    def written(self, symbols: Int[Array, "N"], valid: Bool[Array, "N"]) -> Int[Array, "N"]:
        return symbols[jnp.maximum(valid.sum() - 1 - jnp.arange(symbols.shape[0]), 0)]
