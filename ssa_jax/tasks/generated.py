"""The builder for tasks whose examples are drawn: an example's split is read off its content."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from ssa_jax.tasks.base import Batch, Task

RESERVED = 1 / 16
CHUNK = 4096


class Drawn(NamedTuple):
    """One example before it is laid out: question and answer tokens, and how many of each are valid."""

    question: Int[Array, "Q"]
    asked: Int[Array, ""]
    answer: Int[Array, "A"]
    answered: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated(Task):
    """Examples drawn from a key; a seeded 32-bit hash of an example's tokens says to which split it belongs.

    Validation, test and each shifted test own 1/16 of all possible examples; `held_out_fraction` of the rest is
    'architecture', what remains 'weights'. So no key, length or batch size can bring an example of one split into
    another. A batch draws more candidates than it needs and keeps the first that belong to its split: they
    follow the task's distribution, given the split. If too few belong, those that do are repeated; if none do
    (probability below 1e-11, unless the space has a few dozen examples), the mask is empty and nothing counts.

    Validation and test sets have `validation_size` and `test_size` different examples (ValueError when the space has
    too few), so they hold fewer of the short ones than the mixture says. `train_size` > 0 makes the train set finite
    as well: different examples, `held_out_fraction` of them 'architecture', a smaller set part of a larger one.

    Each example has a level (digits, pairs, length, ...). `mixture` weighs the levels of training, in rising order;
    () weighs all the same. All levels of a split share one shape: shorter examples are padded on the left.
    """

    train_size: int = 0
    validation_size: int = 500
    test_size: int = 1000
    held_out_fraction: float = 0.2
    mixture: tuple[float, ...] = ()

    pad: ClassVar[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mixture", tuple(float(weight) for weight in self.mixture))
        if not 0 < self.held_out_fraction < 1:
            raise ValueError(f"held_out_fraction = {self.held_out_fraction}: between 0 and 1.")
        if min(self.validation_size, self.test_size) < 1 or self.train_size < 0:
            raise ValueError("validation_size and test_size are at least 1, train_size at least 0 (0: without end).")
        if self.train_size and not 0 < self._held_out < self.train_size:
            raise ValueError(f"train_size = {self.train_size} leaves 'architecture' or 'weights' empty.")
        levels = self.levels("train")
        if self.mixture and (len(self.mixture) != len(levels) or min(self.mixture) < 0 or max(self.mixture) == 0):
            raise ValueError(f"mixture = {self.mixture}: one weight >= 0, not all 0, for each of {list(levels)}.")

    @abc.abstractmethod
    def levels(self, split: str) -> range:
        """The levels that occur in a split."""

    @abc.abstractmethod
    def sizes(self, level: int) -> tuple[int, int]:
        """How many tokens the question and the answer of an example of this level have."""

    @abc.abstractmethod
    def words(self, split: str) -> int:
        """How many random words `sample` takes."""

    @abc.abstractmethod
    def sample(self, words: UInt32[Array, "N"], level: Int[Array, ""], split: str) -> Drawn:
        """One example of a level, as the split has it, made of random 32-bit words."""

    @property
    def length(self) -> int:
        return max(self.width(split) for split in self.splits)

    @property
    def answers(self) -> int:
        return max(self.sizes(self.levels(split)[-1])[1] for split in self.splits)

    def width(self, split: str) -> int:
        """T of a split, from `answers` to `length`; all splits but the shifted tests have the same."""
        same = (split,) if split in self.shifted else tuple(s for s in self.splits if s not in self.shifted)
        return max(self.answers, *(sum(self.sizes(self.levels(s)[-1])) - 1 for s in same))

    def batch(self, key: Array, split: str, size: int, difficulty: Int[Array, ""] | int | None = None) -> Batch:
        """As `Task.batch`; `difficulty`, for a curriculum, caps the level (never below the lowest) and may be traced.

        ValueError for a difficulty where the split is finite.
        """
        if self._size(self._known(split)):
            if difficulty is not None:
                raise ValueError(f"difficulty needs a split without end; {split!r} has {self._size(split)} examples.")
            rows = self.examples(split)
            index = jax.random.randint(key, (size,), 0, self._size(split))
            return jax.tree.map(lambda row: row[index], rows)
        low, high = self._share(split)
        drawn = self._draw(key, split, math.ceil((size + 4 * math.sqrt(size) + 24) / (high - low)), difficulty)
        fits = self._belongs(self._fingerprint(drawn["inputs"]), split)
        first = jnp.argsort(~fits, stable=True)[jnp.arange(size) % jnp.maximum(fits.sum(), 1)]
        rows = jax.tree.map(lambda row: row[first], drawn)
        return rows | {"mask": rows["mask"] & fits.any()}

    def examples(self, split: str) -> Batch:
        size = self._size(self._known(split))
        if not size:
            raise ValueError(f"Split {split!r} of task {self.name!r} has no end; train_size > 0 gives it one.")
        if split == "train":
            parts = [
                _different(self, "train", "weights", size - self._held_out),
                _different(self, "train", "architecture", self._held_out),
            ]
        else:
            parts = [_different(self, split, split, size)]
        return {name: jnp.concatenate([part[name] for part in parts]) for name in parts[0]}

    @property
    def _held_out(self) -> int:
        return int(self.train_size * self.held_out_fraction + 1e-6)

    def _size(self, split: str) -> int:
        """How many examples a split has; 0 without end."""
        return {
            "train": self.train_size,
            "weights": self.train_size - self._held_out,
            "architecture": self._held_out,
            "validation": self.validation_size,
        }.get(split, self.test_size)

    def _fingerprint(self, inputs: Int[Array, "B T"]) -> UInt32[Array, "B"]:
        return fingerprint(inputs, inputs != self.pad, self.vocab_size, self.seed)

    def _share(self, split: str) -> tuple[float, float]:
        """The part of [0, 1) whose hashes are the split's."""
        fixed = ("validation", "test", *self.shifted)
        if split in fixed:
            return fixed.index(split) * RESERVED, (fixed.index(split) + 1) * RESERVED
        start = len(fixed) * RESERVED
        held_out = start + (1 - start) * self.held_out_fraction
        return {"train": (start, 1.0), "architecture": (start, held_out), "weights": (held_out, 1.0)}[split]

    def _belongs(self, hashed: UInt32[Array, "B"], split: str) -> Bool[Array, "B"]:
        low, high = self._share(split)
        return (hashed >= np.uint32(low * 2**32)) & (hashed <= np.uint32(int(high * 2**32) - 1))

    def _draw(self, key: Array, split: str, size: int, difficulty: Int[Array, ""] | int | None = None) -> Batch:
        """`size` examples of the split's distribution, whatever split their content belongs to."""
        levels = self.levels(split)
        weights = self.mixture if self.mixture and levels == self.levels("train") else (1.0,) * len(levels)
        levels, weights = np.array([pair for pair in zip(levels, weights, strict=True) if pair[1]]).T
        levels, up_to = levels.astype(np.int32), jnp.asarray(np.cumsum(weights), jnp.float32)
        total = up_to[-1] if difficulty is None else up_to[jnp.maximum((levels <= difficulty).sum(), 1) - 1]
        words = jax.random.bits(key, (size, 1 + self.words(split)))  # one call compiles several times faster than many
        at = (uniform(words[:, :1]) * total >= up_to).sum(-1)
        level = jnp.asarray(levels)[jnp.minimum(at, len(levels) - 1)]
        place = functools.partial(_place, width=self.width(split), pad=self.pad)
        return jax.vmap(lambda words, level: place(self.sample(words, level, split)))(words[:, 1:], level)


def below(words: UInt32[Array, "*S"], limit: Int[Array, ""] | int) -> Int[Array, "*S"]:
    """Words to integers in [0, limit), uniform but for a bias of limit / 2^32."""
    return (words % jnp.asarray(limit, jnp.uint32)).astype(jnp.int32)


def uniform(words: UInt32[Array, "*S"]) -> Float[Array, "*S"]:
    """Words to multiples of 2^-24 in [0, 1); no rounding, so that every platform draws the same examples."""
    return (words >> 8).astype(jnp.float32) * jnp.float32(2**-24)


def fingerprint(tokens: Int[Array, "B T"], keep: Bool[Array, "B T"], base: int, seed: int) -> UInt32[Array, "B"]:
    """A 32-bit hash of the kept tokens and their distances from the end: padding on the left does not change it.

    Tokens lie in [0, base). Each (distance, token) is scattered to a 32-bit word; the words' sum is scattered again.
    """
    distance = jnp.arange(tokens.shape[-1], dtype=jnp.uint32)[::-1]
    start = np.uint32(np.random.SeedSequence(seed).generate_state(1)[0])
    words = _scatter(_scatter(distance * np.uint32(base) + tokens.astype(jnp.uint32)) + start)
    return _scatter(jnp.sum(jnp.where(keep, words, 0), axis=-1, dtype=jnp.uint32))


def _scatter(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words that changes half the bits when one changes (Wellons' 'lowbias32' constants)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _place(drawn: Drawn, width: int, pad: int) -> Batch:
    """Question, then answer without its last token, pushed to the right: a position sees all before its target."""
    question, asked, answer, answered = drawn
    j = jnp.arange(width) - (width - (asked + answered - 1))
    at = lambda row, index: row[jnp.clip(index, 0, row.shape[0] - 1)]
    inputs = jnp.where(j < 0, pad, jnp.where(j < asked, at(question, j), at(answer, j - asked)))
    mask = j >= asked - 1
    targets = jnp.where(mask, at(answer, j - asked + 1), 0)
    return {"inputs": inputs.astype(jnp.int32), "targets": targets.astype(jnp.int32), "mask": mask}


@functools.lru_cache(maxsize=64)
def _different(task: Generated, split: str, belongs_to: str, size: int) -> dict[str, np.ndarray]:
    """The first `size` different examples of a stream that the task's seed fixes: drawn as `split`, of `belongs_to`."""
    if split not in task.shifted and task.levels(split) == task.levels("train"):
        split = "train"
    draw = _stream(dataclasses.replace(task, train_size=0, validation_size=1, test_size=1), split)
    seen: dict[bytes, tuple[np.ndarray, ...]] = {}
    chunks = 64 + 256 * size // CHUNK
    # the batches of a finite set are made inside jit, where this has to run at once
    with jax.ensure_compile_time_eval():
        stream = jax.random.fold_in(jax.random.key(task.seed), task.splits.index(belongs_to))
        for chunk in range(chunks):
            rows, hashed = jax.tree.map(np.asarray, draw(jax.random.fold_in(stream, chunk)))
            fits = task._belongs(hashed, belongs_to)
            for example in zip(*(row[fits] for row in rows.values()), strict=True):
                seen.setdefault(example[list(rows).index("inputs")].tobytes(), example)
            if len(seen) >= size:
                break
    if len(seen) < size:
        raise ValueError(
            f"Task {task.name!r}: {chunks * CHUNK} draws gave only {len(seen)} different examples for split "
            f"{belongs_to!r}, not {size}. Ask for a smaller set or a larger task."
        )
    columns = zip(*list(seen.values())[:size], strict=True)
    return {name: np.stack(column) for name, column in zip(rows, columns, strict=True)}


@functools.lru_cache(maxsize=64)
def _stream(task: Generated, split: str) -> Callable[[Array], tuple[Batch, UInt32[Array, "B"]]]:
    """CHUNK examples of a key, with their hashes."""

    def draw(key: Array) -> tuple[Batch, UInt32[Array, "B"]]:
        rows = task._draw(key, split, CHUNK)
        return rows, task._fingerprint(rows["inputs"])

    return jax.jit(draw)
