"""Are the brackets balanced? Near misses, several types, deeper and longer strings."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from ssa_jax.tasks.generated import Drawn, Generated, below, uniform
from ssa_jax.tasks.registry import registry

BRACKETS = "()[]{}<>"


@registry.register("parentheses")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parentheses(Generated):
    """A string of brackets, then '?': answer 1 if it is balanced (Dyck-k with k `types`), else 0.

        ( ( ) ( ) ) ? -> 1        ( ( ) ) ) ( ? -> 0        ( [ ) ] ? -> 0

    Half the draws are balanced, uniform among the strings of n pairs that nest no deeper than `depth`. The other half
    is one edit away from such a string and never balanced: an opening and a later closing bracket change places
    (so that the counts still agree), one bracket turns round, or, with types > 1, one changes its type; each kind as
    often. Short balanced strings are few, so the test, where no example occurs twice, has a little under half of them.

    Level: n, from 1 to `pairs`. Tests: 'longer' has `pairs` + 1 to 2 `pairs`, as deep as in training; 'deeper' has up
    to `pairs` and nests `depth` + 1 to 2 `depth` deep (before the edit). Tokens: ( 0, ) 1, [ 2, ..., ?, padding.
    Zhong & Andreas (2024) have one type, up to 30 pairs, and other edits; this is our setting.
    """

    pairs: int = 16
    depth: int = 6
    types: int = 1

    name: ClassVar[str] = "parentheses"
    shifted: ClassVar[tuple[str, ...]] = ("longer", "deeper")
    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not (1 <= self.depth < self.pairs and 1 <= self.types <= len(BRACKETS) // 2):
            raise ValueError(
                f"depth = {self.depth}, pairs = {self.pairs}, types = {self.types}: "
                "1 <= depth < pairs and types from 1 to 4."
            )
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        return 2 * self.types + 2

    @property
    def pad(self) -> int:
        return 2 * self.types + 1

    def levels(self, split: str) -> range:
        if split == "longer":
            return range(self.pairs + 1, 2 * self.pairs + 1)
        return range(self.depth + 1 if split == "deeper" else 1, self.pairs + 1)

    def sizes(self, level: int) -> tuple[int, int]:
        return 2 * level + 1, 1

    def words(self, split: str) -> int:
        return 6 + 4 * self.levels(split)[-1]

    def sample(self, words: UInt32[Array, "N"], level: Int[Array, ""], split: str) -> Drawn:
        string, height = self._balanced(words[6:].reshape(2, -1), level, split)
        label = below(words[5], 2)
        string = jnp.where(label == 1, string, self._broken(words[:5], string, height, level))
        question = jnp.append(string, 0).at[2 * level].set(2 * self.types)
        return Drawn(question, 2 * level + 1, label[None], jnp.int32(1))

    def _balanced(
        self, words: UInt32[Array, "2 S"], level: Int[Array, ""], split: str
    ) -> tuple[Int[Array, "S"], Int[Array, "S"]]:
        """A balanced string of `level` pairs, and the height after each bracket."""
        least, most = (self.depth + 1, 2 * self.depth) if split == "deeper" else (0, self.depth)
        opens = jnp.asarray(opening_probability(2 * self.levels(split)[-1], least, most))
        slots = jnp.arange(most)

        def write(state: tuple[Array, ...], item: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
            height, reached, stack = state
            left, chance, fresh = item
            up = chance < opens[jnp.maximum(left, 0), height, reached]
            stack = jnp.where(up & (slots == height), fresh, stack)
            kind = jnp.sum(jnp.where(slots == jnp.where(up, height, height - 1), stack, 0))
            height = jnp.clip(jnp.where(up, height + 1, height - 1), 0, most)
            return (height, jnp.maximum(reached, (height >= least).astype(jnp.int32)), stack), (2 * kind + ~up, height)

        left = 2 * level - jnp.arange(words.shape[1])
        start = (jnp.int32(0), jnp.int32(least == 0), jnp.zeros(most, jnp.int32))
        return jax.lax.scan(write, start, (left, uniform(words[0]), below(words[1], self.types)))[1]

    def _broken(
        self, words: UInt32[Array, "5"], string: Int[Array, "S"], height: Int[Array, "S"], level: Int[Array, ""]
    ) -> Int[Array, "S"]:
        """One edit that leaves the string unbalanced, whatever it was."""
        j = jnp.arange(string.shape[0])
        valid, opening = j < 2 * level, string % 2 == 0
        i = pick(words[0], valid & opening)
        # swapping i and k lowers the heights from i to k by two: one of them has to be 1 or less
        lowest = jax.lax.cummin(jnp.where(j >= i, height, jnp.iinfo(jnp.int32).max))
        k = pick(words[1], valid & ~opening & (j > i) & (jnp.roll(lowest, 1) <= 1))
        swapped = string.at[i].set(string[k]).at[k].set(string[i])
        one = pick(words[2], valid)
        turned = string.at[one].set(string[one] ^ 1)
        other = 2 + 2 * below(words[3], max(self.types - 1, 1))
        retyped = string.at[one].set((string[one] + other) % (2 * self.types))
        kinds = jnp.stack([swapped, turned, retyped][: 2 + (self.types > 1)])
        return kinds[below(words[4], kinds.shape[0])]

    def token_text(self, token: int) -> str:
        return (*BRACKETS[: 2 * self.types], "?", "")[token]


def pick(word: UInt32[Array, ""], eligible: Bool[Array, "S"]) -> Int[Array, ""]:
    """The index of an eligible slot, each as likely; there has to be one."""
    count = jnp.cumsum(eligible)
    return jnp.argmax(count > below(word, count[-1]))


@functools.lru_cache(maxsize=16)
def opening_probability(steps: int, least: int, most: int) -> Float[np.ndarray, "steps+1 most+1 2"]:
    """P(next bracket opens | brackets left, height, `least` reached) for uniform strings of depth `least` to `most`.

    The number of ways to finish, W(left, height, reached) = W(left - 1, height + 1, reached or height + 1 >= least)
    + W(left - 1, height - 1, reached), scaled per `left` to stay finite, gives P as the first term's share.
    """
    ways = np.zeros((most + 2, 2))
    ways[0, 1] = 1
    probability = np.zeros((steps + 1, most + 1, 2), np.float32)
    reaches = np.arange(1, most + 1) >= least
    for left in range(1, steps + 1):
        up, down = np.zeros((most + 1, 2)), np.zeros((most + 1, 2))
        up[:most, 0] = np.where(reaches, ways[1 : most + 1, 1], ways[1 : most + 1, 0])
        up[:most, 1] = ways[1 : most + 1, 1]
        down[1:] = ways[:most]
        total = up + down
        probability[left] = np.divide(up, total, out=np.zeros_like(up), where=total > 0)
        ways[: most + 1] = total / total.max()
    return probability
