"""What every score function is: a frozen dataclass that turns logits and a boolean mask into attention weights.

Four families, because the family decides what can run a score function fast:

log-weight  weights proportional to exp(g(z)), g elementwise: dense, blockwise and Pallas attention, memory linear in T
simplex     needs the whole row (sparsemax, entmax): dense, or chunked over queries
kernel      weights proportional to phi(q).phi(k): dense, or linear time by running sums
product     anything else that needs the whole row: dense
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Params = dict[str, Array]
Family = Literal["log-weight", "simplex", "kernel", "product"]
Theta = Float[Array, "P ..."] | tuple[Float[Array, "..."], ...]


def compute_dtype(dtype) -> jnp.dtype:
    """float64 for float64, float32 for everything else: the precision that score functions work in."""
    return jnp.promote_types(dtype, jnp.float32)


def masked_softmax(
    log_weights: Float[Array, "... S"], mask: Bool[Array, "... S"], ones: int = 0
) -> Float[Array, "... S"]:
    """exp(g) / (ones + sum of exp(g) over visible keys); exactly 0, weight and gradient, where masked."""
    top = jnp.max(log_weights, axis=-1, keepdims=True, where=mask, initial=0.0 if ones else -jnp.inf)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    # the inner where: exp of a masked entry may overflow, and infinity times a zero cotangent is not a number
    weights = jnp.where(mask, jnp.exp(jnp.where(mask, log_weights - top, 0)), 0)
    total = weights.sum(-1, keepdims=True) + (ones * jnp.exp(-top) if ones else 0)
    return weights / jnp.where(total > 0, total, 1)


def safe_divide(numerator: Float[Array, "..."], denominator: Float[Array, "..."], floor: float) -> Float[Array, "..."]:
    """numerator / denominator, the denominator kept at least `floor` away from 0 on its own side."""
    small = jnp.abs(denominator) < floor
    return numerator / jnp.where(small, jnp.where(denominator < 0, -floor, floor), denominator)


@dataclasses.dataclass(frozen=True)
class Score:
    """A score function. Frozen and hashable, so that it can be a static argument; its numbers live in `params`."""

    name: ClassVar[str]
    family: ClassVar[Family]
    sums_to_one: ClassVar[bool] = True
    """Whether every row that sees a key sums to one."""

    @property
    def learnable(self) -> bool:
        """Whether `params` holds anything to learn."""
        return False

    def init(self, heads: int) -> Params:
        """Start values, float32, leading axis `heads` (1 where all heads share them); {} if nothing is learned."""
        return {}

    def weights(
        self,
        logits: Float[Array, "... H T S"],
        mask: Bool[Array, "..."] | None = None,
        params: Params | None = None,
    ) -> Float[Array, "... H T S"]:
        """Attention weights of logits z = q.k / sqrt(E), which are dimensionless.

        Args:
          logits: any float dtype; computed in float32 (float64 if given float64), returned in its own dtype.
          mask: True where a key is visible, broadcastable to logits, applied after the transform: a masked key
            has weight and gradient exactly 0, a row without visible keys is 0.
          params: what `init` gave, or its trained successor.

        Raises:
          ValueError: a learnable score function was given no params.
        """
        if logits.ndim == 2:
            one_head = self.weights(logits[None], None if mask is None else jnp.asarray(mask), params)
            return one_head.reshape(logits.shape)
        params = self.checked(params)
        mask = jnp.ones((), bool) if mask is None else jnp.asarray(mask)
        mask = mask.reshape((1,) * (logits.ndim - mask.ndim) + mask.shape)
        # masked logits are replaced before the transform too, so that nothing in them can reach a gradient
        z = jnp.where(mask, logits.astype(compute_dtype(logits.dtype)), 0)
        return self.masked_weights(z, mask, params).astype(logits.dtype)

    def masked_weights(
        self, z: Float[Array, "... H T S"], mask: Bool[Array, "..."], params: Params
    ) -> Float[Array, "... H T S"]:
        """The member's own part of `weights`: float32 or float64 logits, a mask of the same rank, 0 where masked."""
        raise NotImplementedError

    def checked(self, params: Params | None) -> Params:
        """`params`, or {} for a score function that learns nothing."""
        if self.learnable and not params:
            raise ValueError(f"Score function {self.name!r} is learnable: pass params=score.init(heads).")
        return params or {}


@dataclasses.dataclass(frozen=True)
class LogWeight(Score):
    """Weights proportional to exp(g(z)): a member says what g is, once, and every attention backend runs it.

    A backend reads `theta(params)`, evaluates `log_weight` on blocks of logits, and differentiates it by
    `log_weight_vjp`; where automatic differentiation of g is wrong or slow the member gives g a custom JVP.
    """

    family: ClassVar[Family] = "log-weight"
    denominator: ClassVar[Literal["sum", "1 + sum", "1"]] = "sum"
    """What exp(g) is divided by. "1 + sum": one more key with logit 0 and value 0. "1": weights are exp(g) <= 1."""
    counts_keys: ClassVar[bool] = False
    """Whether g depends on the number of keys that the row sees."""

    def theta(self, params: Params) -> Float[Array, "P H"]:
        """The P numbers that g uses, after their constraints, for each head (H = 1: the same for all)."""
        return jnp.zeros((0, 1))

    def log_weight(
        self, logits: Float[Array, "..."], theta: Theta, keys: Float[Array, "..."] | None = None
    ) -> Float[Array, "..."]:
        """g(z), elementwise and finite for finite z.

        Args:
          logits: any shape, float32 or float64.
          theta: theta[p] broadcasts against logits. A tuple says that we are inside a kernel that cannot gather.
          keys: the number of visible keys of each logit's row, at least 1, broadcasting against logits;
            given where `counts_keys`.
        """
        raise NotImplementedError

    def log_weight_vjp(
        self,
        logits: Float[Array, "..."],
        theta: Theta,
        keys: Float[Array, "..."] | None,
        cotangent: Float[Array, "..."],
    ) -> tuple[Float[Array, "..."], Theta]:
        """Gradients of sum(cotangent * g) by logits and by theta."""
        _, pullback = jax.vjp(lambda z, theta: self.log_weight(z, theta, keys), logits, theta)
        return pullback(cotangent)

    def masked_weights(
        self, z: Float[Array, "... H T S"], mask: Bool[Array, "..."], params: Params
    ) -> Float[Array, "... H T S"]:
        theta = self.theta(params).astype(z.dtype)[..., None, None]
        keys = None
        if self.counts_keys:
            keys = jnp.broadcast_to(mask, z.shape).sum(-1, keepdims=True).clip(1).astype(z.dtype)
        log_weights = self.log_weight(z, theta, keys)
        if self.denominator == "1":
            return jnp.where(mask, jnp.exp(log_weights), 0)
        return masked_softmax(log_weights, mask, ones=int(self.denominator == "1 + sum"))


def shared_or_per_head(per: str, heads: int) -> int:
    """The leading axis of parameters: `heads`, or 1 where all heads of a layer share them."""
    if per not in ("head", "layer"):
        raise ValueError(f"per={per!r} must be 'head' or 'layer'.")
    return heads if per == "head" else 1
