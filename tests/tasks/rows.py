"""Batches as plain Python, for comparison with slow definitions."""

import functools

import jax
import numpy as np


def compiling_fast():
    """A fixture's body: the programs are whole numbers only, and compiling them is what the tests wait for."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@functools.lru_cache(maxsize=64)
def batches(task, split):
    """Batches of 1024 from a key; those of a finite split are a choice of rows, quicker without jit."""
    batch = functools.partial(task.batch, split=split, size=1024)
    return jax.jit(batch) if split in ("train", "weights", "architecture") else batch


@functools.lru_cache(maxsize=64)
def rows(task, split, count=1024, seed=0):
    """`count` rows of a split as a dict of numpy arrays."""
    parts = [batches(task, split)(key) for key in jax.random.split(jax.random.key(seed), count // 1024)]
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


def cases(task, split, count=1024, seed=0):
    """The same rows as (question, fed, answer): tokens read up to the first answer, those fed after it, all targets."""
    batch = rows(task, split, count, seed)
    return [_case(task, *row) for row in zip(batch["inputs"], batch["targets"], batch["mask"], strict=True)]


def contents(batch, pad=None):
    """The rows' inputs as hashable lists, without padding."""
    return [tuple(token for token in row if token != pad) for row in batch["inputs"].tolist()]


def _case(task, inputs, targets, mask):
    first = int(mask.argmax())
    assert mask[first:].all() and not mask[:first].any()
    question = [token for token in inputs[: first + 1].tolist() if token != getattr(task, "pad", None)]
    return question, inputs[first + 1 :].tolist(), targets[first:].tolist()
