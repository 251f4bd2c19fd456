"""The mathematics of one dimension: maps from R to R, learned and fixed.

A function is a frozen, hashable value with `.name`, `.learnable`, `.options()`, `.init(key) -> params` and
`.apply(params, x) -> y`, evaluated in at least float32 and returned in x's dtype.

>>> import jax
>>> spline = get("spline", knots=32, low=-4.0, high=4.0, init="relu")
>>> float(spline.apply(spline.init(jax.random.key(0)), 7.0))
4.0
"""

from ssa_jax.functions.activations import Activation
from ssa_jax.functions.catalogue import get, names
from ssa_jax.functions.files import Learned, load, read_csv, save, write_csv
from ssa_jax.functions.polynomial import Polynomial, fit_polynomial
from ssa_jax.functions.spline import Spline, knot_gradient

Function = Activation | Polynomial | Spline

__all__ = [
    "Activation",
    "Function",
    "Learned",
    "Polynomial",
    "Spline",
    "fit_polynomial",
    "get",
    "knot_gradient",
    "load",
    "names",
    "read_csv",
    "save",
    "write_csv",
]
