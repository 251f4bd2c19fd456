"""Optimizers as directions: what to step along, before the learning rate of a replica and its schedule."""

from typing import Any

import jax
import optax

from ssa_jax.registry import no_such

WEIGHTS_OPTIMIZERS = ("adam", "adamw", "sgd")
ARCH_OPTIMIZERS = ("adam", "sgd")


def decayed(weights: Any) -> Any:
    """Which weights decay: matrices do; biases, gains, scalars and parameters of score functions do not."""

    def decays(path: tuple, leaf: jax.Array) -> bool:
        return leaf.ndim >= 2 and not any(str(getattr(key, "key", "")).startswith("score") for key in path)

    return jax.tree_util.tree_map_with_path(decays, weights)


def direction(
    kind: str,
    b1: float = 0.9,
    b2: float = 0.999,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    allowed: tuple[str, ...] = WEIGHTS_OPTIMIZERS,
) -> optax.GradientTransformation:
    """Gradient -> direction; the caller subtracts learning_rate x schedule(age) x direction.

    adam, adamw: moments b1, b2. sgd: momentum b1 (0 for none). adamw adds `weight_decay` x weights where `decayed`
    says so (Loshchilov and Hutter 2019). `clip` > 0 bounds the global norm of the gradient first.
    """
    if kind not in allowed:
        raise no_such("optimizer", kind, allowed)
    parts = [optax.clip_by_global_norm(clip)] if clip > 0 else []
    parts.append(optax.trace(decay=b1) if kind == "sgd" else optax.scale_by_adam(b1=b1, b2=b2))
    if kind == "adamw":
        parts.append(optax.add_decayed_weights(weight_decay, mask=decayed))
    return optax.chain(*parts)


def descend(params: Any, directions: Any, rate: jax.Array) -> Any:
    """params - rate x directions, leaf by leaf."""
    return jax.tree.map(lambda p, d: p - (rate * d).astype(p.dtype), params, directions)
