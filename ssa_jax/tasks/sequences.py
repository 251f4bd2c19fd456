"""The layout of tasks that read a string of symbols and write another of the same length."""

import abc
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from ssa_jax.tasks.generated import Drawn, Generated, below


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sequences(Generated):
    """x1 ... xn ; -> y1 ... yn and an end class, which is scored too: an answer that does not stop is wrong.

    Symbols are uniform, tokens 0 to `symbols` - 1; the end is class `symbols`, ';' that token, padding the next.
    Level: n, from `shortest` to `longest`; the 'longer' test has `longest` + 1 to `longer`.
    """

    symbols: int = 16
    shortest: int = 2
    longest: int = 10
    longer: int = 20

    shifted: ClassVar[tuple[str, ...]] = ("longer",)

    def __post_init__(self) -> None:
        if not (1 <= self.shortest <= self.longest < self.longer and 2 <= self.symbols <= 26):
            raise ValueError(
                f"shortest = {self.shortest}, longest = {self.longest}, longer = {self.longer}, "
                f"symbols = {self.symbols}: 1 <= shortest <= longest < longer and symbols from 2 to 26."
            )
        super().__post_init__()

    @abc.abstractmethod
    def written(self, symbols: Int[Array, "N"], valid: Bool[Array, "N"]) -> Int[Array, "N"]:
        """What is to be written for the valid symbols, which stand in front."""

    @property
    def vocab_size(self) -> int:
        return self.symbols + 2

    @property
    def outputs(self) -> int:
        return self.symbols + 1

    @property
    def pad(self) -> int:
        return self.symbols + 1

    def levels(self, split: str) -> range:
        if split == "longer":
            return range(self.longest + 1, self.longer + 1)
        return range(self.shortest, self.longest + 1)

    def sizes(self, level: int) -> tuple[int, int]:
        return level + 1, level + 1

    def words(self, split: str) -> int:
        return self.levels(split)[-1] + 1

    def sample(self, words: UInt32[Array, "N"], level: Int[Array, ""], split: str) -> Drawn:
        j = jnp.arange(words.shape[0])
        read = below(words, self.symbols)
        question, answer = (jnp.where(j < level, row, self.symbols) for row in (read, self.written(read, j < level)))
        return Drawn(question, level + 1, answer, level + 1)

    def token_text(self, token: int) -> str:
        return chr(ord("a") + token) if token < self.symbols else {self.symbols: ";"}.get(token, "")

    def target_text(self, target: int) -> str:
        return chr(ord("a") + target) if target < self.symbols else "."
