"""A needle in a haystack: which value followed the marker that is asked for?"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from ssa_jax.tasks.generated import Drawn, Generated, below
from ssa_jax.tasks.registry import registry


@registry.register("needle")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Needle(Generated):
    """k pairs of a marker and a value, all markers different, then one of the markers as a query: answer its value.

    Tokens: values, then markers (m), then queries (q), then padding.
        m4 17 m9 3 m0 17 q9 -> 3

    Level: k, from 1 to `pairs`; the 'more_pairs' test has `pairs` + 1 to `more_pairs`. After Zhong & Andreas (2024):
    30 markers, 127 values, up to 30 pairs; training on up to 10 pairs and testing on more is our setting.
    """

    pairs: int = 10
    more_pairs: int = 20
    markers: int = 30
    values: int = 127

    name: ClassVar[str] = "needle"
    shifted: ClassVar[tuple[str, ...]] = ("more_pairs",)

    def __post_init__(self) -> None:
        if not 1 <= self.pairs < self.more_pairs <= self.markers or self.values < 2:
            raise ValueError(
                f"pairs = {self.pairs}, more_pairs = {self.more_pairs}, markers = {self.markers}, "
                f"values = {self.values}: 1 <= pairs < more_pairs <= markers and values >= 2."
            )
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        return self.values + 2 * self.markers + 1

    @property
    def outputs(self) -> int:
        return self.values

    @property
    def pad(self) -> int:
        return self.values + 2 * self.markers

    def levels(self, split: str) -> range:
        return range(self.pairs + 1, self.more_pairs + 1) if split == "more_pairs" else range(1, self.pairs + 1)

    def sizes(self, level: int) -> tuple[int, int]:
        return 2 * level + 1, 1

    def words(self, split: str) -> int:
        return self.markers + self.levels(split)[-1] + 1

    def sample(self, words: UInt32[Array, "N"], level: Int[Array, ""], split: str) -> Drawn:
        marker = jnp.argsort(words[: self.markers])[: self.levels(split)[-1]]
        value = below(words[self.markers : -1], self.values)
        asked = below(words[-1], level)
        haystack = jnp.stack([self.values + marker, value], axis=-1).reshape(-1)
        question = jnp.append(haystack, 0).at[2 * level].set(self.values + self.markers + marker[asked])
        return Drawn(question, 2 * level + 1, value[asked][None], jnp.int32(1))

    def token_text(self, token: int) -> str:
        if token < self.values:
            return str(token)
        kind, number = divmod(token - self.values, self.markers)
        return ("m", "q", "")[kind] + (str(number) if kind < 2 else "")
