"""Metrics of every replica on a split's exact set of examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from ssa_jax.training.mesh import over_replicas, shared_sharding
from ssa_jax.training.objective import batch_sums
from ssa_jax.training.state import Replicas, State


def make_evaluate(
    model: Any, task: Any, split: str, mesh: Mesh, mapping: str, stacked_arch: bool = False, batch_size: int = 1024
) -> Callable[[State, Replicas], dict[str, Array]]:
    """(state, replicas) -> {'loss', 'accuracy', 'exact_match'}, each [R]; the state is not donated.

    loss: nats per target token; accuracy: of target tokens; exact_match: sequences with every target right.
    """
    examples = task.examples(split)
    size = next(iter(examples.values())).shape[0]
    batches = -(-size // batch_size)
    padding = batches * -(-size // batches) - size
    # padded examples have no target, so they add nothing to any sum
    padded = jax.tree.map(lambda x: jnp.pad(x, ((0, padding), *[(0, 0)] * (x.ndim - 1))), examples)
    stacked = jax.tree.map(lambda x: x.reshape(batches, -1, *x.shape[1:]), padded)

    def of_replica(arch: Any, weights: Any, source: Array) -> dict[str, Array]:
        arch = jax.tree.map(lambda a: a[source], arch) if stacked_arch else arch
        each = jax.lax.map(lambda batch: batch_sums(model, weights, arch, batch)[1], stacked)
        total = jax.tree.map(lambda x: x.sum(axis=0), each)
        return {
            "loss": total.loss / total.tokens,
            "accuracy": total.correct / total.tokens,
            "exact_match": total.exact / total.sequences,
        }

    def evaluate(state: State, replicas: Replicas) -> dict[str, Array]:
        return over_replicas(of_replica, mapping, mesh)(state.arch, state.weights, replicas.source)

    return jax.jit(evaluate, out_shardings=shared_sharding(mesh))
