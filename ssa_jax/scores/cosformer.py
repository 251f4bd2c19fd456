"""cosFormer: linear attention that prefers near keys (Qin et al. 2022).

w_ij proportional to relu(q_i).relu(k_j) cos(pi/2 (i - j) / M). Family kernel: the cosine of a difference splits into
two products, so phi(x_i) = [relu(x_i) cos(pi i / 2M), relu(x_i) sin(pi i / 2M)]. Scaling a query or all keys changes
nothing; shifting does; positions enter, so that permuting keys does too. A query whose products all vanish gets zeros.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from ssa_jax.scores.base import compute_dtype
from ssa_jax.scores.kernel import Kernel


@dataclasses.dataclass(frozen=True)
class CosFormer(Kernel):
    """relu features weighed by the cosine of their distance.

    Given bare logits, `weights` takes relu(z) for relu(q).relu(k) and weighs it by the cosine of positions 0, 1, ...

    Args:
      horizon: M, the largest length; None takes the length of the context at hand. Weights stay non-negative because
        no distance exceeds M.

    Raises:
      ValueError: a context longer than the horizon.
    """

    name: ClassVar[str] = "cosformer"
    horizon: int | None = None

    def features(self, x, params, length, positions=None):
        horizon = self._horizon(length)
        positions = jnp.arange(x.shape[-2]) if positions is None else positions
        x = jax.nn.relu(x.astype(compute_dtype(x.dtype)))
        angle = (math.pi / 2 / horizon) * positions.astype(x.dtype)[:, None]
        return jnp.concatenate([x * jnp.cos(angle), x * jnp.sin(angle)], axis=-1)

    def masked_weights(self, z, mask, params):
        rows, columns = z.shape[-2:]
        distance = jnp.arange(rows)[:, None] - jnp.arange(columns)
        angle = (math.pi / 2 / self._horizon(max(rows, columns))) * distance.astype(z.dtype)
        return self.products_to_weights(jax.nn.relu(z) * jnp.cos(angle), mask)

    def _horizon(self, length: int) -> int:
        if self.horizon is not None and length > self.horizon:
            raise ValueError(f"A context of {length} tokens exceeds cosformer's horizon={self.horizon}.")
        return self.horizon or length
