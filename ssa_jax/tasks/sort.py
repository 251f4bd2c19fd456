"""Sorting, a control."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ssa_jax.tasks.registry import registry
from ssa_jax.tasks.sequences import Sequences


@registry.register("sort")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sort(Sequences):
    """Writes the symbols in rising order, equal ones as often as they occur: b a d a ; -> a a b d . Our setting."""

    name: ClassVar[str] = "sort"

    def written(self, symbols: Int[Array, "N"], valid: Bool[Array, "N"]) -> Int[Array, "N"]:
        return jnp.sort(jnp.where(valid, symbols, self.symbols))
