"""Scaled Signed Averaging: weights that grow polynomially in the logit, not exponentially (Naim et al. 2026).

w = (1 + b|z|)^(sgn(z) n), so g(z) = sgn(z) n log(1 + b|z|). Family log-weight.
Neither shift- nor scale-invariant. Limits: b = 1/m, n = m, m -> infinity is softmax; b -> 0 is uniform;
n -> infinity is one-hot; logits magnified without bound give z^n / sum z^n over the positive logits, so that no
positive logit ever loses all its weight; one logit M above the rest leaves them a mass of order M^-n.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssa_jax.scores.base import LogWeight, shared_or_per_head

COLUMNS = ("b", "n")


@jax.custom_jvp
def ssa_log_weight(logits: Float[Array, "..."], b: Float[Array, "..."], n: Float[Array, "..."]) -> Float[Array, "..."]:
    """log of (1 + b|z|)^(sgn(z) n), elementwise (eq. 2); b > 0 and n >= 1 broadcast against logits.

    Finite for every finite logit, unlike the power itself.

    >>> [f"{weight:.2f}" for weight in jnp.exp(ssa_log_weight(jnp.array([-1.0, 0.0, 1.0]), 1.0, 2.0))]
    ['0.25', '1.00', '4.00']
    """
    return jnp.where(logits < 0, -n, n) * log_of_1_plus(b * jnp.abs(logits))


@ssa_log_weight.defjvp
def _(primals, tangents):
    logits, b, n = primals
    d_logits, d_b, d_n = tangents
    log_weight = ssa_log_weight(logits, b, n)
    # autodiff of sgn(z) log1p(b|z|) has slope 0 at z = 0, where it is n b: zero-initialised queries would stay dead
    slope = n * b / (1 + b * jnp.abs(logits))
    # by b it is z slope / b, by n it is g / n: so written, the gradients of b and n cost one sum each
    return log_weight, slope * (d_logits + logits * (d_b / _not_zero(b))) + log_weight * (d_n / _not_zero(n))


def log_of_1_plus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + x) for x >= 0 as exact as log1p, in two thirds of the time that XLA's takes on a CPU."""
    y = 1 + x
    # what rounding took from y; halved and doubled so that no compiler simplifies (1 + x) - 1 to x
    lost = x - (y * 0.5 - 0.5) * 2
    return jnp.log(y) + lost / y


def _not_zero(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.where(jnp.abs(x) < 1e-30, 1e-30, x)


@dataclasses.dataclass(frozen=True)
class SSA(LogWeight):
    """Scaled Signed Averaging with b and n fixed or learned; theta's rows are b and n.

    Args:
      b, n: fixed values, or where learning starts.
      learn: which of the two are learned; () fixes both.
      parametrisation: 'softplus' is b = softplus(u) > 0 and n = 1 + softplus(u) > 1, the paper's constraints;
        'exp' is b = exp(u), n = exp(u); 'free' is b = u, n = u, as in the authors' language models.
      rate: multiplies what the optimizer's steps do to u (u = rate * params), for Adam a learning-rate multiplier.
      per: one b and n a 'head', or one a 'layer' for all its heads.

    With n = 1 + softplus(u) the slope of n by u fades as n -> 1: a start near 1 stays there, hence 1.5.

    Raises:
      ValueError: a value outside what the parametrisation can express.
    """

    name: ClassVar[str] = "ssa"
    b: float = 1.0
    n: float = 1.5
    learn: tuple[Literal["b", "n"], ...] = COLUMNS
    parametrisation: Literal["softplus", "exp", "free"] = "softplus"
    rate: float = 1.0
    per: Literal["head", "layer"] = "head"

    def __post_init__(self):
        object.__setattr__(self, "learn", tuple(self.learn))
        shared_or_per_head(self.per, 1)
        if not set(self.learn) <= set(COLUMNS):
            raise ValueError(f"learn={self.learn} must name 'b', 'n', both or neither.")
        if self.parametrisation not in ("softplus", "exp", "free"):
            raise ValueError(f"parametrisation={self.parametrisation!r} must be 'softplus', 'exp' or 'free'.")
        if self.b <= 0 or self.n <= 0:
            raise ValueError(f"b={self.b} and n={self.n} must be positive.")
        if "n" in self.learn and self.parametrisation == "softplus" and self.n <= 1:
            raise ValueError(f"n={self.n}: softplus learns n > 1 only; start higher, or use 'exp' or 'free'.")
        if self.rate <= 0:
            raise ValueError(f"rate={self.rate} must be positive.")

    @property
    def learnable(self) -> bool:
        return bool(self.learn)

    def init(self, heads):
        shape = shared_or_per_head(self.per, heads)
        return {name: jnp.full(shape, self._unconstrained(name) / self.rate, jnp.float32) for name in self.learn}

    def theta(self, params):
        rows = [
            self._constrained(name, self.rate * params[name])
            if name in self.learn
            else jnp.full(params[self.learn[0]].shape if self.learn else (1,), getattr(self, name))
            for name in COLUMNS
        ]
        return jnp.stack(rows)

    def log_weight(self, logits, theta, keys=None):
        return ssa_log_weight(logits, theta[0], theta[1])

    def _unconstrained(self, name: str) -> float:
        value = getattr(self, name)
        if self.parametrisation == "softplus":
            return math.log(math.expm1(value - (name == "n")))
        return math.log(value) if self.parametrisation == "exp" else value

    def _constrained(self, name: str, u: Float[Array, " H"]) -> Float[Array, " H"]:
        if self.parametrisation == "softplus":
            return jax.nn.softplus(u) + (name == "n")
        return jnp.exp(u) if self.parametrisation == "exp" else u
