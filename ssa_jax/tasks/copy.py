"""Copying, trained on short strings and tested on long ones."""

import dataclasses
from typing import ClassVar

from jaxtyping import Array, Bool, Int

from ssa_jax.tasks.registry import registry
from ssa_jax.tasks.sequences import Sequences


@registry.register("copy")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy(Sequences):
    """Writes what it read, then the end.

    b a d ; -> b a d . as
        inputs   b a d ; b a d
        targets  . . . b a d end

    Lengths 2-10 for weights and training, 2-15 (`architecture_longest`) for 'architecture', whose examples the
    weights never see; exact match at 11-40 is the published test (Teney et al. 2026). 16 symbols, 40 as the end of
    the test and the scored end are our setting.
    """

    architecture_longest: int = 15
    longer: int = 40

    name: ClassVar[str] = "copy"

    def __post_init__(self) -> None:
        if self.architecture_longest < self.longest:
            raise ValueError(f"architecture_longest = {self.architecture_longest} is below longest = {self.longest}.")
        super().__post_init__()

    def levels(self, split: str) -> range:
        if split == "architecture":
            return range(self.shortest, self.architecture_longest + 1)
        return super().levels(split)

    def written(self, symbols: Int[Array, "N"], valid: Bool[Array, "N"]) -> Int[Array, "N"]:
        return symbols
