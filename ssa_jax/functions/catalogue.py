"""The functions by name. A new one is an entry here; the contract tests then find it."""

from functools import partial

from ssa_jax.functions.activations import ACTIVATIONS, Activation
from ssa_jax.functions.polynomial import Polynomial
from ssa_jax.functions.spline import Spline
from ssa_jax.registry import Registry

FUNCTIONS = Registry("function")
for name in ACTIVATIONS:
    FUNCTIONS.register(name)(partial(Activation, name))
FUNCTIONS.register("polynomial")(Polynomial)
# partial, so that the registry reads the options from the constructor, not from the fields
FUNCTIONS.register("spline")(partial(Spline))

names, get = FUNCTIONS.names, FUNCTIONS.get
