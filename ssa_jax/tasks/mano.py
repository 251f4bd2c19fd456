"""Arithmetic modulo a prime on expressions in prefix order."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from ssa_jax.tasks.generated import Drawn, Generated, below
from ssa_jax.tasks.registry import registry

OPERATORS = "+-*"


@registry.register("mano")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Mano(Generated):
    """The value modulo `modulus` of a random expression tree, written in prefix order.

        begin 2 * + 5 20 3 answer -> 6          (5 + 20) * 3 = 75 = 6 mod 23; 2 operators
        begin 1 - 4 9 answer -> 18

    Operands and operators (+ - *) are uniform; of l operators one is the root and the other l - 1 are divided
    between its left and right side uniformly, and so on below. The token after 'begin' says l.
    Tokens: operands, + - *, begin, answer, l = 1 to L, padding.

    Level: l, uniform from 1 to L = `operators` in training; validation and test have exactly L (Allen-Zhu, 'Physics
    of Language Models' 4.1: modulus 23, L = 10, 13, 16). One token per meaning, where the reference has two, and the
    answer alone scored are our setting.
    """

    operators: int = 10
    modulus: int = 23

    name: ClassVar[str] = "mano"

    def __post_init__(self) -> None:
        if self.operators < 1 or not 2 <= self.modulus <= 46340:
            raise ValueError(f"operators = {self.operators}, modulus = {self.modulus}: at least 1, and 2 to 46340.")
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        return self.modulus + len(OPERATORS) + 2 + self.operators + 1

    @property
    def outputs(self) -> int:
        return self.modulus

    @property
    def pad(self) -> int:
        return self.vocab_size - 1

    def levels(self, split: str) -> range:
        return range(self.operators if split in ("validation", "test") else 1, self.operators + 1)

    def sizes(self, level: int) -> tuple[int, int]:
        return 2 * level + 4, 1

    def words(self, split: str) -> int:
        return 2 * (2 * self.operators + 1)

    def sample(self, words: UInt32[Array, "N"], level: Int[Array, ""], split: str) -> Drawn:
        begin, answer = self.modulus + len(OPERATORS), self.modulus + len(OPERATORS) + 1
        expression = self._expression(words.reshape(-1, 2), level)
        head = jnp.stack([jnp.int32(begin), answer + level])
        question = jnp.concatenate([head, expression, jnp.array([answer])]).at[2 * level + 3].set(answer)
        return Drawn(question, 2 * level + 4, self._value(expression, level)[None], jnp.int32(1))

    def _expression(self, words: UInt32[Array, "E 2"], level: Int[Array, ""]) -> Int[Array, "E"]:
        """2 l + 1 tokens in front: a stack holds how many operators each open subtree still has to spend."""
        slots = jnp.arange(self.operators + 1)

        def write(state: tuple[Array, Array], words: Array) -> tuple[tuple[Array, Array], Array]:
            stack, top = state
            left = jnp.sum(jnp.where(slots == top, stack, 0))
            operand, operator = below(words[0], self.modulus), self.modulus + below(words[0], len(OPERATORS))
            spent = below(words[1], jnp.maximum(left, 1))
            split = jnp.where(slots == top, left - 1 - spent, jnp.where(slots == top + 1, spent, stack))
            inner = left > 0
            state = jnp.where(inner, split, stack), jnp.where(inner, top + 1, top - 1)
            return state, jnp.where(inner, operator, operand)

        return jax.lax.scan(write, (jnp.where(slots == 0, level, 0), jnp.int32(0)), words)[1]

    def _value(self, expression: Int[Array, "E"], level: Int[Array, ""]) -> Int[Array, ""]:
        """Reads from the right with a stack of values; an operator takes its left side from the top."""
        slots = jnp.arange(self.operators + 2)

        def read(state: tuple[Array, Array], item: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            stack, top = state
            token, valid = item
            left, right = (jnp.sum(jnp.where(slots == at, stack, 0)) for at in (top, top - 1))
            results = jnp.stack([left + right, left - right, left * right]) % self.modulus
            operator = token - self.modulus
            inner = operator >= 0
            after = jnp.where(inner, top - 1, top + 1)
            value = jnp.where(inner, results[jnp.clip(operator, 0, 2)], token)
            stack = jnp.where(valid & (slots == after), value, stack)
            return (stack, jnp.where(valid, after, top)), None

        valid = jnp.arange(expression.shape[0]) < 2 * level + 1
        (stack, _), _ = jax.lax.scan(read, (jnp.zeros_like(slots), jnp.int32(-1)), (expression, valid), reverse=True)
        return stack[0]

    def token_text(self, token: int) -> str:
        operands, lengths = map(str, range(self.modulus)), map(str, range(1, self.operators + 1))
        return (*operands, *OPERATORS, "begin", "answer", *lengths, "")[token]
