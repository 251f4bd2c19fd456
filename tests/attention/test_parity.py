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
        truth = jax.jit(functools.partial(run, backend="dense"))(*wide)
    assert ours[0].dtype == case.dtype
    return ours, truth


def assert_close(ours, truth, bound):
    for (path, mine), reference in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(truth), strict=True):
        mine, reference = np.asarray(mine, np.float64), np.asarray(reference)
        # gradients that vanish (one visible key) are held against the size of their terms
        scale = max(np.abs(reference).max(), 0.2)
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
    Case(queries=150, keys=20, window=9, bias=(1, H, 150, 20), batch=1),
    Case(score="temperature", queries=1, keys=7, options=(("per", "layer"),)),
    Case(causal=True, bias=(H, 1, T), dtype=jnp.bfloat16),
]
KERNEL = [
    Case(score="cosformer", causal=True, queries=257, keys=257, batch=1, heads=2, groups=1),
    Case(score="cosformer", keys=S, mask=(B, H, 1, S)),
    Case(score="cosformer", causal=True, keys=S, dtype=jnp.bfloat16),
    Case(score="feature_map", causal=True, options=(("function", "relu"),)),
]
ROWS = [
    Case(score="entmax", causal=True, queries=129, keys=129, batch=1, heads=2, groups=1),
    Case(score="entmax", options=(("learn", True),), mask=(B, 1, T, S), bias=(1, H, T, S), keys=S),
    Case(score="sparsemax", window=9, segments=True),
    Case(score="sa_softmax", causal=True, bias=(H, 1, T), dtype=jnp.bfloat16),
]

# kernels are interpreted here, which compiles slowly: these cover causal, window, segments, mask, bias, both dtypes
INTERPRETED = [
    Case(causal=True, bias=(H, 1, T), dtype=jnp.bfloat16),
    Case(score="sigmoid", causal=True, window=20, segments=True, mask=(B, 1, T, T)),
    Case(score="spline", options=(("knots", 4),), window=9, keys=S, width=24, bias=(1, H, T, S), groups=1),
]
CASES = {
    "dense": [DEFAULT[0], DEFAULT[3], DEFAULT[-1]],
    "blockwise": DEFAULT,
    "linear": KERNEL,
    "rows": ROWS,
    "pallas_gpu": INTERPRETED,
    "pallas_tpu": INTERPRETED,
}


@pytest.mark.parametrize("backend, case", [(name, case) for name, cases in CASES.items() for case in cases], ids=str)
def test_backend_gives_the_reference(backend, case):
    assert_close(*outputs_and_gradients(case, backend), BOUND[case.dtype])


PATTERNS = [
    {},
    {"causal": True},
    {"window": 5},
    {"causal": True, "window": 40},
    {"segments": True},
    {"mask": True},
    {"bias": True, "causal": True},
]
SIZES = [(1, 16), (2, 128), (17, 32), (64, 64), (129, 16), (257, 32)]


def grid(names):
    for name, pattern, (length, width), dtype in itertools.product(names, PATTERNS, SIZES, BOUND):
        shapes = {key: (B, 1, length, length) for key in ("mask", "bias") if pattern.get(key)}
        yield Case(name, queries=length, keys=length, width=width, dtype=dtype, **{**pattern, **shapes})


KERNELS = ("pallas_gpu", "pallas_tpu")
FULL = [("blockwise", case) for case in grid(LOG_WEIGHT)] + [("rows", case) for case in grid(SIMPLEX)]
FULL += [(backend, case) for backend in KERNELS for case in (*DEFAULT, *grid(LOG_WEIGHT))]


@pytest.mark.slow
@pytest.mark.parametrize("backend, case", FULL, ids=str)
def test_backend_gives_the_reference_everywhere(backend, case):
    assert_close(*outputs_and_gradients(case, backend), BOUND[case.dtype])


ITERATIVE = ("blockwise", *(pytest.param(name, marks=pytest.mark.slow) for name in KERNELS))


def run_with_gradients(score, inputs, constants, cotangent, backend):
    @jax.jit
    def run(inputs):
        out, pullback = jax.vjp(lambda inputs: attend(**inputs, score=score, backend=backend, **constants), inputs)
        return out, pullback(cotangent)[0]

    return run(inputs)


@pytest.mark.parametrize("backend", ITERATIVE)
@pytest.mark.parametrize("scale", [0.0, 50.0], ids=["zero q and k", "logits of 1e4"])
def test_extreme_logits(backend, scale):
    case = Case(causal=True, scale=scale)
    ours, truth = outputs_and_gradients(case, backend)
    assert_close(ours, truth, 1e-3 if scale else 2e-5)
    if scale == 0:  # values still learn, and so do queries and keys as soon as one of them moves
        assert np.abs(ours[1]["v"]).max() > 0


@pytest.mark.parametrize("backend", ITERATIVE)
def test_zero_queries_still_learn(backend):
    score, inputs, constants, cotangent = Case(causal=True).draw()
    inputs["q"] = jnp.zeros_like(inputs["q"])

    def loss(q):
        return jnp.vdot(attend(**inputs | {"q": q}, score=score, backend=backend, **constants), cotangent)

    assert float(jnp.abs(jax.jit(jax.grad(loss))(inputs["q"])[:, 1:]).min(axis=-1).max()) > 0


@pytest.mark.parametrize("backend", ITERATIVE)
def test_dead_rows_are_zero(backend):
    for name in ("ssa", "sigmoid", "softmax1"):
        score, inputs, constants, cotangent = Case(name, mask=(B, 1, T, T), causal=True).draw()
        constants["mask"] = constants["mask"].at[1].set(False)
        out, gradients = run_with_gradients(score, inputs, constants, cotangent, backend)
        assert (out[1] == 0).all() and (out[0, : T // 4] == 0).all()
        assert all((gradients[key][1] == 0).all() for key in ("q", "k", "v"))
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("backend", ITERATIVE)
def test_hidden_blocks_are_skipped(backend):
    """What no query sees may hold anything, even what would spoil a sum when multiplied with weight 0."""
    score, inputs, constants, cotangent = Case(queries=128, keys=1024, causal=True, batch=1, heads=2).draw()
    inputs |= {name: inputs[name].at[:, 512:].set(jnp.nan) for name in ("k", "v")}
    out, gradients = run_with_gradients(score, inputs, constants, cotangent, backend)
    assert jnp.isfinite(out).all()
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_blocks_of_any_size_and_units_of_any_shape_agree():
    case = Case(score="ssmax", keys=S, mask=(B, H, T, S), bias=(B, 1, T, S), segments=True)
    score, inputs, constants, cotangent = case.draw()
    inputs["k"], inputs["v"] = (jnp.repeat(inputs[name], 2, axis=2) for name in "kv")

    def run(inputs, blocks):
        (mask, segments), bias = (constants["mask"], constants["segment_ids"]), inputs["bias"]
        out, pullback = jax.vjp(
            lambda q, k, v, params, bias: blockwise.attend(
                q, k, v, score, params, segments=segments, mask=mask, bias=bias, blocks=blocks
            ),
            *(inputs[name] for name in ("q", "k", "v", "params")),
            bias,
        )
        return out, pullback(cotangent)

    results = [
        jax.jit(run, static_argnums=1)(inputs, blocks)
        for blocks in (Blocks(40, 48, 2, 4), Blocks(16, 24, 1, 2), Blocks(16, 8, 2, 4))
    ]
    for other in results[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), results[0], other)


@pytest.mark.parametrize("backend", ITERATIVE)
def test_replicas_under_vmap_equal_a_loop(backend):
    score, inputs, constants, cotangent = Case(causal=True, segments=True).draw()
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), inputs)

    def run(inputs):
        out, pullback = jax.vjp(lambda inputs: attend(**inputs, score=score, backend=backend, **constants), inputs)
        return out, pullback(cotangent)[0]

    mapped = jax.jit(jax.vmap(run))(stacked)
    for r in range(2):
        alone = jax.jit(run)(jax.tree.map(lambda leaf, r=r: leaf[r], stacked))
        replica = jax.tree.map(lambda leaf, r=r: leaf[r], mapped)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), replica, alone)


@pytest.mark.parametrize("name", ["softmax", "ssa", "entmax", "cosformer"])
def test_memory_is_linear_in_length(name):
    score = scores.get(name)
    params = jax.eval_shape(lambda: score.init(2))

    def run(q, k, v, params, cotangent):
        out, pullback = jax.vjp(
            lambda *inputs: attend(*inputs[:3], score=score, params=inputs[3], causal=True), q, k, v, params
        )
        return out, pullback(cotangent)

    def temporaries(length):
        x = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.float32)
        return jax.jit(run).lower(x, x, x, params, x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(8192) <= 4.4 * temporaries(2048)


def test_what_auto_picks_and_why(monkeypatch):
    def pick(name, length=1024, platform="cpu", **pattern):
        return api.choose_backend(scores.get(name), length, length, api.Pattern(**pattern), platform=platform)

    assert pick("ssa").backend == "blockwise"
    assert pick("ssa", 32).backend == "dense"
    assert pick("sparsemax").backend == "rows"
    assert pick("cosformer", causal=True).backend == "linear"
    assert pick("cosformer", window=3) == ("dense", "running sums cannot take a window")
    assert pick("mixed").reason == "softmax: blockwise, ssa: blockwise"
    monkeypatch.setattr(api, "one_device", lambda: True)
    assert pick("ssa", platform="tpu").backend == "pallas_tpu"
    assert pick("ssa", platform="gpu").backend == "pallas_gpu"
    monkeypatch.setattr(api, "one_device", lambda: False)
    assert "shard_map" in pick("ssa", platform="tpu").reason


@pytest.mark.parametrize(
    "name, backend, complaint",
    [
        ("entmax", "blockwise", "family simplex"),
        ("ssa", "linear", "family log-weight"),
        ("cosformer", "rows", "'dense'"),
    ],
)
def test_a_backend_refuses_a_family_that_it_cannot_run(name, backend, complaint):
    q = jnp.zeros((1, 4, 2, 8))
    with pytest.raises(ValueError, match=complaint):
        attend(q, q, q, score=name, params=scores.get(name).init(2), backend=backend)
