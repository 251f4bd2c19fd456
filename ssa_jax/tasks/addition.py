"""Decimal addition, least significant digit first."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from ssa_jax.tasks.generated import Drawn, Generated, below
from ssa_jax.tasks.registry import registry

PLUS, EQUALS, PAD = 10, 11, 12


@registry.register("addition")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Addition(Generated):
    """a + b = s, all digits of s scored: n digits each for a and b (zeros in front allowed), n + 1 for s.

    27 + 95 = 122 with digits=2, teacher-forced (s without its last digit is input):
        inputs   7 2 + 5 9 = 2 2
        targets  . . . . . 2 2 1

    Level: n. `digits` only, or 1 to `digits` with `mixed`; the 'longer' test has up to `extra_digits` more. After
    Zhong & Andreas (2024), who take 10 digits and score the answer from its second digit on; digits=3 and scoring
    all is our setting.
    """

    digits: int = 3
    mixed: bool = False
    extra_digits: int = 2

    name: ClassVar[str] = "addition"
    shifted: ClassVar[tuple[str, ...]] = ("longer",)
    vocab_size: ClassVar[int] = 13
    outputs: ClassVar[int] = 10
    pad: ClassVar[int] = PAD

    def __post_init__(self) -> None:
        if self.digits < 1 or self.extra_digits < 1:
            raise ValueError(f"digits = {self.digits}, extra_digits = {self.extra_digits}: at least 1.")
        super().__post_init__()

    def levels(self, split: str) -> range:
        if split == "longer":
            return range(self.digits + 1, self.digits + self.extra_digits + 1)
        return range(1 if self.mixed else self.digits, self.digits + 1)

    def sizes(self, level: int) -> tuple[int, int]:
        return 2 * level + 2, level + 1

    def words(self, split: str) -> int:
        return 2 * (self.levels(split)[-1] + 1)

    def sample(self, words: UInt32[Array, "N"], level: Int[Array, ""], split: str) -> Drawn:
        most = self.levels(split)[-1]
        a, b = below(words, 10).reshape(2, most + 1) * (jnp.arange(most + 1) < level)
        _, total = jax.lax.scan(lambda carry, pair: ((carry + pair) // 10, (carry + pair) % 10), jnp.int32(0), a + b)
        j = jnp.arange(2 * most + 2)
        question = jnp.where(j < level, a[jnp.minimum(j, most)], b[jnp.clip(j - level - 1, 0, most)])
        question = jnp.where(j == level, PLUS, jnp.where(j == 2 * level + 1, EQUALS, question))
        return Drawn(question, 2 * level + 2, total, level + 1)

    def token_text(self, token: int) -> str:
        return {PLUS: "+", EQUALS: "=", PAD: ""}.get(token, str(token))
