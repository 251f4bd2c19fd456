"""Kernel attention with a learned feature map (Teney et al. 2026): K(q, k) = phi(q).phi(k), phi a scalar function.

w_ij = phi(q_i).phi(k_j) / sum_j phi(q_i).phi(k_j), phi applied to each coordinate. Family kernel. phi may be negative,
so weights may be too; they still sum to one unless the sum nearly vanishes (the paper does not say what happens then:
here the denominator stays 1e-6 away from 0). Multiplying phi by a constant changes nothing; a constant phi is uniform.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from ssa_jax import functions
from ssa_jax.scores.base import compute_dtype, shared_or_per_head
from ssa_jax.scores.kernel import Kernel


@dataclasses.dataclass(frozen=True)
class FeatureMap(Kernel):
    """phi is any scalar function of `ssa_jax.functions`, by name or as built.

    Args:
      function: a learnable one puts its parameters in params.
      per: one phi a 'head', or one a 'layer'.
    """

    name: ClassVar[str] = "feature_map"
    function: functions.Function | str = "spline"
    per: Literal["head", "layer"] = "head"

    def __post_init__(self):
        shared_or_per_head(self.per, 1)
        if isinstance(self.function, str):
            object.__setattr__(self, "function", functions.get(self.function))

    @property
    def learnable(self) -> bool:
        return self.function.learnable

    def init(self, heads):
        return repeat_per_head(self.function, shared_or_per_head(self.per, heads))

    def features(self, x, params, length, positions=None):
        return apply_per_head(self.function, params, x.astype(compute_dtype(x.dtype)))


def repeat_per_head(function, heads):
    """A function's start values, once a head."""
    start = function.init(jax.random.key(0))
    return jax.tree.map(lambda value: jnp.tile(value.astype(jnp.float32), (heads,) + (1,) * value.ndim), start)


def apply_per_head(function, params, x):
    """Applies each head's function to its own part of x[..., H, T, E]; parameters with one head serve all."""
    if not params:
        return function.apply({}, x)
    params = jax.tree.map(lambda value: jnp.broadcast_to(value, (x.shape[-3], *value.shape[1:])), params)
    return jax.vmap(function.apply, in_axes=(0, -3), out_axes=-3)(params, x)
