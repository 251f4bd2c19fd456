"""Score functions: from attention logits and a boolean mask to attention weights.

`names()` lists them, `get(name, **options)` builds one. A new one is a file with a dataclass and a line below;
the contract tests find it through the registry.
"""

from ssa_jax.registry import Registry
from ssa_jax.scores.base import LogWeight, Params, Score
from ssa_jax.scores.cosformer import CosFormer
from ssa_jax.scores.entmax import Entmax
from ssa_jax.scores.feature_map import FeatureMap
from ssa_jax.scores.kernel import Kernel
from ssa_jax.scores.mixed import Mixed
from ssa_jax.scores.raw_spline import RawSpline
from ssa_jax.scores.sa_softmax import SASoftmax
from ssa_jax.scores.sigmoid import Sigmoid
from ssa_jax.scores.softmax import Softmax
from ssa_jax.scores.softmax1 import Softmax1
from ssa_jax.scores.sparsemax import Sparsemax
from ssa_jax.scores.spline import SplineScore
from ssa_jax.scores.ssa import SSA
from ssa_jax.scores.ssmax import ScalableSoftmax
from ssa_jax.scores.temperature import Temperature

__all__ = ["Kernel", "LogWeight", "Mixed", "Params", "Score", "get", "names", "options"]

_registry = Registry("score function")
for _member in (
    CosFormer,
    Entmax,
    FeatureMap,
    RawSpline,
    SASoftmax,
    ScalableSoftmax,
    Sigmoid,
    Softmax,
    Softmax1,
    Sparsemax,
    SplineScore,
    SSA,
    Temperature,
):
    _registry.register(_member.name)(_member)


@_registry.register(Mixed.name)
def _mixed(members: tuple[str | Score, ...] = ("softmax", "ssa")) -> Mixed:
    return Mixed(tuple(get(member) if isinstance(member, str) else member for member in members))


def names() -> tuple[str, ...]:
    """All score functions."""
    return _registry.names()


def options(name: str) -> tuple[str, ...]:
    """The options of `get(name, ...)`."""
    return _registry.options(name)


def get(name: str, **options) -> Score:
    """Builds a score function.

    >>> get("ssa", b=0.8, learn=("n",)).family
    'log-weight'

    Raises:
      ValueError: unknown name or option, with the nearest match and what is allowed; or an option's bad value.
    """
    return _registry.get(name, **options)
