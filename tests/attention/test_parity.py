"""Every backend gives the dense float64 reference's output and gradients: for q, k, v, bias and score parameters."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax import scores
from ssa_jax.attention import api, attend, blockwise
from ssa_jax.attention.blocks import Blocks

BOUND = {jnp.float32: 2e-5, jnp.bfloat16: 2e-2}
LOG_WEIGHT = tuple(name for name in scores.names() if scores.get(name).family == "log-weight")
SIMPLEX = ("sparsemax", "entmax", "sa_softmax", "raw_spline")


@dataclasses.dataclass(frozen=True)
class Case:
    """What `attend` is called with; arrays are drawn from these shapes."""

    score: str = "ssa"
    options: tuple = ()
    batch: int = 2
    queries: int = 37
    keys: int = 37
    heads: int = 4
    groups: int = 2
    width: int = 16
    causal: bool = False
    window: int | None = None
    segments: bool = False
    mask: tuple | None = None
    bias: tuple | None = None
    dtype: type = jnp.float32
    scale: float = 1.0

    def __str__(self):
        shown = ((field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self))
        parts = [f"{name}={value}" for name, value, default in shown if value != default]
        return ",".join(parts).replace(" ", "").replace("<class'jax.numpy.", "").replace("'>", "") or "default"

    def draw(self):
        """Inputs of the case's dtype, and what stays constant."""
        rng = np.random.default_rng(0)

        def normal(*shape):
            return jnp.asarray(rng.standard_normal(shape), self.dtype)

        score = scores.get(self.score, **dict(self.options))
        params = jax.tree.map(
            lambda leaf: leaf + 0.1 * jnp.asarray(rng.random(leaf.shape), jnp.float32), score.init(self.heads)
        )
        inputs = {
            "q": self.scale * normal(self.batch, self.queries, self.heads, self.width),
            "k": self.scale * normal(self.batch, self.keys, self.groups, self.width),
            "v": normal(self.batch, self.keys, self.groups, self.width),
            "params": params,
        }
        if self.bias is not None:
            inputs["bias"] = normal(*self.bias)
        constants = {"causal": self.causal, "window": self.window}
        if self.mask is not None:
            constants["mask"] = jnp.asarray(rng.random(self.mask) < 0.6).at[..., : self.mask[-2] // 4, :].set(False)
        if self.segments:
            # packed sequences: increasing, so that whole blocks see nothing of each other
            ids = [np.sort(rng.integers(0, 4, (self.batch, n))) for n in (self.queries, self.keys)]
            constants["segment_ids"] = tuple(jnp.asarray(side, jnp.int32) for side in ids)
        return score, inputs, constants, normal(self.batch, self.queries, self.heads, self.width)


def outputs_and_gradients(case, backend):
    """The backend's results in the case's dtype and the reference's in float64 for the same, rounded, numbers."""
    score, inputs, constants, cotangent = case.draw()

    def run(inputs, cotangent, backend):
        out, pullback = jax.vjp(lambda inputs: attend(**inputs, score=score, backend=backend, **constants), inputs)
        return out, pullback(cotangent)[0]

    ours = jax.jit(functools.partial(run, backend=backend))(inputs, cotangent)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), (inputs, cotangent))
        reference = jax.jit(functools.partial(run, backend="dense")).lower(*wide)
        # what is compared with needs no fast code
        truth = reference.compile(compiler_options={"xla_backend_optimization_level": 0})(*wide)
    assert ours[0].dtype == case.dtype
    return ours, truth


def assert_close(ours, truth, bound):
    for (path, mine), reference in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(truth), strict=True):
        mine, reference = np.asarray(mine, np.float64), np.asarray(reference)
        # gradients that vanish (one visible key) are held against the size of their terms
        scale = max(np.abs(reference).max(), 0.05)
        assert np.isfinite(mine).all(), f"{jax.tree_util.keystr(path)} is not finite"
        error = np.abs(mine - reference).max() / scale
        assert error <= bound, f"{jax.tree_util.keystr(path)} differs by {error:.2e} of its largest entry"


B, H, T, S = 2, 4, 37, 45
DEFAULT = [
    Case(causal=True, queries=129, keys=129, batch=1, heads=2, groups=1),
    Case(causal=True, window=20, segments=True),
    Case(window=9, keys=S, score="softmax", width=24),
    Case(mask=(B, 1, T, S), bias=(1, H, T, S), keys=S),
    Case(mask=(1, H, 1, S), bias=(B, 1, 1, S), keys=S, score="softmax1", groups=4),
    Case(score="sigmoid", causal=True, segments=True),
    Case(score="ssmax", mask=(B, 1, T, T), causal=True),
    Case(score="spline", causal=True, options=(("knots", 8),)),
    Case(score="temperature", queries=1, keys=7, options=(("per", "layer"),)),
    Case(causal=True, bias=(H, 1, T), dtype=jnp.bfloat16),
]
KERNEL = [
    Case(score="cosformer", causal=True, queries=257, keys=257, batch=1, heads=2, groups=1),
    Case(score="cosformer", keys=S, mask=(B, H, 1, S)),
    Case(score="cosformer", causal=True, keys=S, dtype=jnp.bfloat16),
    Case(score="feature_map", causal=True, options=(("function", scores.feature_map.functions.get("sin")),)),
]
ROWS = [
    Case(score="entmax", causal=True, queries=129, keys=129, batch=1, heads=2, groups=1),
    Case(score="entmax", options=(("learn", True),), mask=(B, 1, T, S), bias=(1, H, T, S), keys=S),
    Case(score="sparsemax", window=9, segments=True),
    Case(score="sa_softmax", causal=True, bias=(H, 1, T), dtype=jnp.bfloat16),
]
