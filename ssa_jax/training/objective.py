"""The loss and its gradient for one replica: sums over target tokens, so that micro-batches of any size add up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int


class Sums(NamedTuple):
    """Sums over the target tokens (loss, correct, tokens) and over the sequences (exact, sequences) of a batch."""

    loss: Float[Array, ""]
    correct: Float[Array, ""]
    tokens: Float[Array, ""]
    exact: Float[Array, ""]
    sequences: Float[Array, ""]


def token_sums(
    logits: Float[Array, "B A V"], targets: Int[Array, "B T"], mask: Bool[Array, "B T"]
) -> tuple[Float[Array, ""], Sums]:
    """Cross-entropy in nats, summed over the masked targets of the last A positions, and what is measured beside it."""
    A = logits.shape[1]
    targets, mask = targets[:, -A:], mask[:, -A:]
    safe = jnp.where(mask, targets, 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), safe)
    right = (jnp.argmax(logits, axis=-1) == targets) & mask
    loss = jnp.sum(losses, where=mask)
    counted = jnp.any(mask, axis=-1)
    exact = jnp.all(right | ~mask, axis=-1) & counted
    sums = Sums(loss, right.sum(dtype=jnp.float32), mask.sum(dtype=jnp.float32), exact.sum(dtype=jnp.float32),
                counted.sum(dtype=jnp.float32))  # fmt: skip
    return loss, sums


def batch_sums(model: Any, weights: Any, arch: Any, batch: dict[str, Array]) -> tuple[Float[Array, ""], Sums]:
    """Summed loss and sums of a batch; extra entries of the batch (segments, …) go to the model by name."""
    extra = {name: value for name, value in batch.items() if name not in ("inputs", "targets", "mask")}
    logits = model.apply({"params": weights, "arch": arch}, batch["inputs"], **extra)
    return token_sums(logits, batch["targets"], batch["mask"])


def gradient(
    model: Any, argnums: int | tuple[int, ...], accumulate: int = 1
) -> Callable[[Any, Any, dict[str, Array]], tuple[Any, Sums]]:
    """(weights, arch, batch) -> gradient of the mean loss per target token, and the sums.

    argnums: 0 weights, 1 arch, (0, 1) both. `accumulate` micro-batches are weighted by their tokens, so that the
    gradient is the whole batch's.
    """
    differentiate = jax.grad(
        lambda weights, arch, batch: batch_sums(model, weights, arch, batch), argnums, has_aux=True
    )

    def whole(weights: Any, arch: Any, batch: dict[str, Array]) -> tuple[Any, Sums]:
        if accumulate == 1:
            total, sums = differentiate(weights, arch, batch)
        else:
            parts = jax.tree.map(lambda x: x.reshape(accumulate, -1, *x.shape[1:]), batch)
            zeros = jax.tree.map(
                lambda s: jnp.zeros(s.shape, s.dtype),
                jax.eval_shape(differentiate, weights, arch, jax.tree.map(lambda x: x[0], parts)),
            )
            add = lambda carry, part: (jax.tree.map(jnp.add, carry, differentiate(weights, arch, part)), None)
            (total, sums), _ = jax.lax.scan(add, zeros, parts)
        return jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1.0), total), sums

    return whole
