"""What training carries from step to step, and what tells replicas apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# streams of a replica's random numbers
INIT, DATA = 0, 1


class State(NamedTuple):
    """weights and weights_moments have a leading axis R; arch is shared (stacked over sources where frozen)."""

    step: Int[Array, ""]
    weights: Any
    weights_moments: Any
    arch: Any
    arch_moments: Any


class Replicas(NamedTuple):
    """One entry a replica: everything that makes it differ from its siblings.

    seed: weights and data order. learning_rate: peak. start: step at which it begins. phase: offset of its
    periodic re-initialisation, in steps. source: which frozen architecture it uses, where several are stacked.
    """

    seed: Int[Array, "R"]
    learning_rate: Float[Array, "R"]
    start: Int[Array, "R"]
    phase: Int[Array, "R"]
    source: Int[Array, "R"]


def make_replicas(
    seeds: Any, learning_rate: Any, steps: int = 0, stagger: float = 0.0, restart_every: int = 0, sources: Any = 0
) -> Replicas:
    """Replicas with these seeds; learning_rate and sources are one for all or one for each.

    stagger: replica r starts at r/R of that fraction of `steps`. restart_every: replica r is re-initialised every
    so many steps, at r/R of the period.
    """
    R = len(seeds)
    order = np.arange(R)
    return Replicas(
        seed=jnp.asarray(seeds, jnp.int32),
        learning_rate=jnp.broadcast_to(jnp.asarray(learning_rate, jnp.float32), (R,)),
        start=jnp.asarray(np.round(order * stagger * steps / R), jnp.int32),
        phase=jnp.asarray(np.round(order * restart_every / R), jnp.int32),
        source=jnp.broadcast_to(jnp.asarray(sources, jnp.int32), (R,)),
    )


def births(replicas: Replicas, step: Int[Array, ""], restart_every: int) -> Int[Array, "R"]:
    """The step at which each replica's present life began; later than `step` for one that has not started."""
    if not restart_every:
        return replicas.start
    latest = (step + replicas.phase) // restart_every * restart_every - replicas.phase
    return jnp.maximum(latest, replicas.start)


def stream(seed: Int[Array, ""], purpose: int, position: Any) -> jax.Array:
    """The key of a seed's `purpose` (INIT: position = birth, DATA: position = step)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), purpose), position)
