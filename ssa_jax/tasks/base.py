"""What a task is, and the builder for tasks whose examples are counted completely."""

import abc
import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ssa_jax.registry import no_such

Batch = dict[str, Array]
"""inputs int32 [B, T]; targets int32 [B, T], the class to give AT each position; mask bool [B, T], where one counts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A distribution over batches and its splits. Hashable: its options are all that it is.

    Splits: 'weights' and 'architecture' (stage 1: what weights and shared functions learn from), 'train' (stage 2
    and baselines: both together), 'validation' (selects learning rates), 'test', and a task's shifted tests. No two
    share an example, 'train' and its two parts excepted.

    Token ids are below `vocab_size`, targets below `outputs`, and targets stand in the last `answers` positions only.
    T is the same for all splits but the shifted tests, which may be wider, and `length` for the widest.
    `seed` fixes the splits, never a batch.
    """

    seed: int = 0

    name: ClassVar[str]
    shifted: ClassVar[tuple[str, ...]] = ()
    vocab_size: ClassVar[int]
    outputs: ClassVar[int]
    length: ClassVar[int]
    answers: ClassVar[int] = 1

    @property
    def splits(self) -> tuple[str, ...]:
        """The names that `batch` and `examples` take."""
        return ("train", "weights", "architecture", "validation", "test", *self.shifted)

    @abc.abstractmethod
    def batch(self, key: Array, split: str, size: int) -> Batch:
        """`size` examples drawn with replacement, a pure function of its arguments; split and size are static."""

    @abc.abstractmethod
    def examples(self, split: str) -> Batch:
        """All of a finite split, in a fixed order; ValueError where a split has no end."""

    def trivial(self) -> dict[str, float]:
        """Accuracy on the test set's targets of a uniform guess, and of the most common class at each position."""
        test = jax.tree.map(np.asarray, self.examples("test"))
        right = sum(
            np.bincount(column[counted]).max()
            for column, counted in zip(test["targets"].T, test["mask"].T, strict=True)
            if counted.any()
        )
        return {"chance": 1 / self.outputs, "majority": float(right / test["mask"].sum())}

    def show(self, example: Batch) -> str:
        """One row of a batch as 'what is read -> what is to be answered'."""
        inputs, targets, mask = (np.asarray(example[part]) for part in ("inputs", "targets", "mask"))
        question = inputs[: mask.argmax() + 1] if mask.any() else inputs
        read = " ".join(filter(None, map(self.token_text, question.tolist())))
        return f"{read} -> {' '.join(map(self.target_text, targets[mask].tolist()))}"

    def token_text(self, token: int) -> str:
        """How an input token is written; '' for padding."""
        return str(token)

    def target_text(self, target: int) -> str:
        """How a target is written."""
        return str(target)

    def _known(self, split: str) -> str:
        if split not in self.splits:
            raise no_such(f"split of task {self.name!r}", split, self.splits)
        return split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Enumerated(Task):
    """A task with a counted number of examples, one answer each, split by a seeded permutation.

    The train set is the permutation's front; test and validation are its back, so that they stay the same when
    `train_fraction` shrinks, and a smaller train set is a subset of a larger one. `held_out_fraction` of the train set
    is 'architecture', the rest 'weights'. Fractions are of all examples, rounded down. ValueError when fractions
    exceed 1 together or a split is left empty.
    """

    train_fraction: float = 0.6
    validation_fraction: float = 0.1
    test_fraction: float = 0.3
    held_out_fraction: float = 0.2

    count: ClassVar[int]

    def __post_init__(self) -> None:
        total = self.train_fraction + self.validation_fraction + self.test_fraction
        if total > 1 + 1e-9:
            raise ValueError(f"train_fraction + validation_fraction + test_fraction = {total:g} exceeds 1.")
        for split, (start, stop) in self.ranges.items():
            if stop <= start:
                raise ValueError(f"Split {split!r} of task {self.name!r} is empty: raise its fraction. {self}")

    @abc.abstractmethod
    def example(self, index: Int[Array, "B"]) -> tuple[Int[Array, "B T"], Int[Array, "B"]]:
        """The inputs and answers of examples 0 to count - 1."""

    @functools.cached_property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Where in the permutation each split starts and stops."""
        N = self.count
        train, validation, test, held_out = (
            int(fraction * N + 1e-6)
            for fraction in (
                self.train_fraction,
                self.validation_fraction,
                self.test_fraction,
                self.train_fraction * self.held_out_fraction,
            )
        )
        return {
            "train": (0, train),
            "weights": (0, train - held_out),
            "architecture": (train - held_out, train),
            "validation": (N - test - validation, N - test),
            "test": (N - test, N),
        }

    @functools.cached_property
    def order(self) -> np.ndarray:
        """The permutation: position in the splits to example."""
        return np.random.default_rng(self.seed).permutation(self.count).astype(np.int32)

    def batch(self, key: Array, split: str, size: int) -> Batch:
        start, stop = self.ranges[self._known(split)]
        return self._rows(jnp.asarray(self.order)[jax.random.randint(key, (size,), start, stop)])

    def examples(self, split: str) -> Batch:
        start, stop = self.ranges[self._known(split)]
        return self._rows(jnp.asarray(self.order[start:stop]))

    def _rows(self, index: Int[Array, "B"]) -> Batch:
        inputs, answer = self.example(index)
        last = jnp.arange(self.length) == self.length - 1
        return {
            "inputs": inputs.astype(jnp.int32),
            "targets": jnp.where(last, answer[:, None], 0).astype(jnp.int32),
            "mask": jnp.broadcast_to(last, inputs.shape),
        }
