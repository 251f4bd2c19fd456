"""The linear spline: exact values and gradients, odd inputs, transformations, and what compiles."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ssa_jax.functions import Spline, knot_gradient
from ssa_jax.functions import spline as module

KNOTS = (2, 3, 17, 32, 64, 256)


def random(*shape, seed=0, scale=1.0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, jnp.float32)


def interp64(spline, values, x):
    """The spline by numpy, in float64."""
    x, values = np.asarray(x, np.float64), np.asarray(values, np.float64)
    knots = np.linspace(spline.low, spline.high, spline.knots)
    y = np.interp(x, knots, values)
    if spline.extrapolation == "linear":
        first, last = (values[1] - values[0]) / spline.step, (values[-1] - values[-2]) / spline.step
        y = np.where(x < spline.low, values[0] + first * (x - spline.low), y)
        y = np.where(x > spline.high, values[-1] + last * (x - spline.high), y)
    return y


def gradients(spline, values, x, dy):
    _, pull = jax.vjp(lambda values, x: spline.apply({"values": values}, x), values, x)
    return pull(dy)


@pytest.mark.parametrize("extrapolation", ["constant", "linear"])
@pytest.mark.parametrize("knots", KNOTS)
def test_values_are_those_of_interpolation(knots, extrapolation):
    spline = Spline(knots, -4, 4, extrapolation)
    values, x = random(knots), jnp.concatenate([random(2000, seed=1, scale=3), spline.grid()])
    y = spline.apply({"values": values}, x)
    np.testing.assert_allclose(y, interp64(spline, values, x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("extrapolation", ["constant", "linear"])
@pytest.mark.parametrize("knots", KNOTS)
def test_gradients_are_finite_differences(knots, extrapolation):
    spline = Spline(knots, -2, 3, extrapolation)
    values, dy = random(knots), random(300, seed=2)
    # away from the kinks, where a difference quotient means the slope
    position = np.random.default_rng(1).uniform(-0.3 * knots, 1.3 * knots, 300)
    x = jnp.asarray(-2 + spline.step * (np.floor(position) + np.clip(position % 1, 0.1, 0.9)), jnp.float32)
    d_values, d_x = gradients(spline, values, x, dy)

    small = 1e-6 * spline.step
    ahead, behind = (interp64(spline, values, np.asarray(x, np.float64) + sign * small) for sign in (1, -1))
    np.testing.assert_allclose(d_x, dy * (ahead - behind) / (2 * small), rtol=1e-5, atol=1e-5)
    # linear in the values: the derivative by v_k is the spline whose only value is at k
    hats = np.stack([interp64(spline, one, x) for one in np.eye(knots)])
    np.testing.assert_allclose(d_values, hats @ np.asarray(dy, np.float64), rtol=1e-5, atol=2e-5)


def test_end_values_learn_from_outside_under_constant_extrapolation():
    spline = Spline(5, -1, 1)
    d_values, d_x = gradients(spline, random(5), jnp.array([-9.0, 9.0, 9.0]), jnp.ones(3))
    assert d_values.tolist() == [1, 0, 0, 0, 2]
    assert d_x.tolist() == [0, 0, 0]


def test_not_finite_inputs_stay_where_they_are():
    values, x = random(9), jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.3])
    spline, dy = Spline(9), jnp.array([1.0, 10.0, 100.0, 0.0])
    y = spline.apply({"values": values}, x)
    assert jnp.isnan(y[0])
    assert y[1:3].tolist() == [values[-1], values[0]]
    d_values, d_x = gradients(spline, values, x, dy)
    assert d_values.tolist() == [100, 0, 0, 0, 0, 0, 0, 0, 10]
    assert d_x.tolist() == [0, 0, 0, 0]

    linear = Spline(9, extrapolation="linear")
    flat_right = values.at[-1].set(values[-2])
    y = linear.apply({"values": flat_right}, x)
    assert jnp.isnan(y[0])
    assert y[1:3].tolist() == [values[-2], -jnp.sign(values[1] - values[0]) * jnp.inf]
    d_values, _ = gradients(linear, flat_right, x, dy)
    assert d_values.tolist() == [0] * 9


@pytest.mark.parametrize("sums", [module._scattered_sums, module._masked_sums])
def test_a_nan_gradient_reaches_only_its_two_values(sums, monkeypatch):
    monkeypatch.setattr(module, "interval_sums", sums)
    dy = jnp.array([1.0, jnp.nan, 1.0])
    gradient = jax.jit(partial(knot_gradient, Spline(5, 0, 4)))(jnp.array([0.5, 2.5, 3.0]), dy)
    assert jnp.isnan(gradient).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("channels", [None, 6])
def test_both_forms_of_the_sums_agree(channels, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 100)
    spline = Spline(17, channels=channels)
    x, dy = random(3, 41, 6, scale=3), random(3, 41, 6, seed=1)
    scattered, masked = (jax.jit(partial(form, spline)) for form in (module._scattered_sums, module._masked_sums))
    # all at once, and as three replicas that are rows of one pass
    for one, other in ((scattered, masked), (jax.jit(jax.vmap(scattered)), jax.jit(jax.vmap(masked)))):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), one(x, dy), other(x, dy))


def test_both_forms_of_the_lookup_agree():
    # the masked form is chosen on a TPU only; its text is checked here, its numbers in the sums above
    for channels, shape in ((None, (9,)), (4, (4, 9))):
        spline = Spline(9, channels=channels)
        text = lowered(
            lambda v, x, spline=spline: spline.apply({"values": v}, x), random(*shape), random(5, 4), on="tpu"
        )
        assert "gather" not in text


def test_channels_are_independent_splines():
    spline, single = Spline(8, channels=3), Spline(8)
    values, x, dy = random(3, 8), random(5, 7, 3, seed=1, scale=3), random(5, 7, 3, seed=2)
    y, (d_values, d_x) = spline.apply({"values": values}, x), gradients(spline, values, x, dy)
    for f in range(3):
        np.testing.assert_allclose(y[..., f], single.apply({"values": values[f]}, x[..., f]), rtol=1e-6)
        expected = gradients(single, values[f], x[..., f], dy[..., f])
        np.testing.assert_allclose(d_values[f], expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(d_x[..., f], expected[1], rtol=1e-6)


def loss(spline, values, x):
    return jnp.sum(jnp.sin(spline.apply({"values": values}, x)))


@pytest.mark.parametrize("channels", [None, 4])
@pytest.mark.parametrize("shared", [True, False])
def test_vmap_map_and_scan_equal_a_loop(shared, channels):
    spline = Spline(16, channels=channels)
    values, x = random(3, *spline.shape), random(3, 2, 10, 4, seed=1, scale=3)
    if shared:
        values = jnp.broadcast_to(values[0], values.shape)
    step = jax.jit(jax.value_and_grad(lambda values, x: loss(spline, values, x), (0, 1)))
    loop = jax.tree.map(lambda *a: jnp.stack(a), *[step(values[r], x[r]) for r in range(3)])
    together = {
        "vmap": jax.vmap(step, (None, 0))(values[0], x) if shared else jax.vmap(step)(values, x),
        "map": jax.jit(lambda: jax.lax.map(lambda a: step(*a), (values, x)))(),
        "scan": jax.lax.scan(lambda carry, a: (carry, step(*a)), 0, (values, x))[1],
    }
    for many in together.values():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), many, loop)


def test_shared_values_get_the_sum_over_replicas():
    spline, x = Spline(16), random(3, 50, scale=3)
    values = random(16)
    summed = jax.grad(lambda v: jnp.sum(jax.vmap(lambda x: loss(spline, v, x))(x)))(values)
    np.testing.assert_allclose(summed, sum(jax.grad(loss, 1)(spline, values, one) for one in x), rtol=1e-5, atol=1e-5)


def test_jit_equals_eager_and_shard_map_works():
    spline, x = Spline(16), random(8, 20, scale=3)
    values = random(16)
    step = jax.value_and_grad(lambda values, x: loss(spline, values, x), (0, 1))
    eager = step(values, x)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def sharded(values, x):
        y, (d_values, d_x) = step(values, x)
        return jax.lax.psum(y, "data"), (jax.lax.psum(d_values, "data"), d_x)

    specs = dict(in_specs=(P(), P("data")), out_specs=(P(), (P(), P("data"))))
    for other in (jax.jit(step), jax.jit(jax.shard_map(sharded, mesh=mesh, check_vma=False, **specs))):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), other(values, x), eager)


def test_second_derivatives():
    spline, values, x = Spline(9), random(9), random(40, seed=1)
    expected = jax.jit(jax.hessian(lambda v: jnp.sum(jnp.sin(jnp.interp(x, spline.grid(), v)))))(values)
    for hessian in (jax.hessian, lambda f: jax.jacrev(jax.grad(f))):
        np.testing.assert_allclose(
            jax.jit(hessian(lambda v: loss(spline, v, x)))(values), expected, rtol=1e-4, atol=1e-4
        )


def lowered(function, *args, on):
    return jax.jit(function).trace(*args).lower(lowering_platforms=(on,)).as_text()


def test_a_frozen_spline_compiles_to_no_sums_over_knots():
    spline, values, x = Spline(16), random(16), random(2, 5, 4)
    frozen = jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(lambda x: loss(spline, values, x))(x))))
    assert "scatter" not in frozen.lower(x).compile().as_text()
    learning = jax.jit(jax.grad(lambda v: jnp.sum(jax.vmap(lambda x: loss(spline, v, x))(x))))
    assert "scatter" in learning.lower(values).compile().as_text()

    def over_layers(weights, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (spline.apply({"values": values}, x * w), None), x, weights)[0])

    assert "scatter" not in jax.jit(jax.grad(over_layers)).lower(random(3), x).compile().as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_never_scatter(platform):
    spline, values, x = Spline(16), random(16), random(2, 50)
    step = jax.grad(lambda values, x: loss(spline, values, x), (0, 1))
    assert "scatter" not in lowered(step, values, x, on=platform)
    assert "scatter" in lowered(step, values, x, on="cpu")


def test_dtypes():
    spline, values, x = Spline(16), random(16), random(100, scale=3)
    half = x.astype(jnp.bfloat16)
    y = spline.apply({"values": values}, half)
    assert y.dtype == jnp.bfloat16
    # evaluated in float32: the result is the float32 result, rounded once
    assert (y == spline.apply({"values": values}, half.astype(jnp.float32)).astype(jnp.bfloat16)).all()
    d_values, d_x = gradients(spline, values, half, jnp.ones_like(half))
    assert (d_values.dtype, d_x.dtype) == (jnp.float32, jnp.bfloat16)
    with jax.enable_x64(True):
        exact = jnp.asarray(np.random.default_rng(0).normal(size=500) * 3)
        y = spline.apply({"values": values}, exact)
        assert y.dtype == jnp.float64
        np.testing.assert_allclose(y, interp64(spline, values, exact), rtol=1e-13, atol=1e-13)


def test_support_counts_visits_and_what_is_outside():
    spline = Spline(5, 0, 4)
    x = jnp.array([[0.0, 0.5, 1.5, 4.0], [-0.1, 4.1, jnp.nan, jnp.inf]])
    support = jax.jit(spline.support)(x)
    assert support["counts"].tolist() == [2, 1, 0, 1]
    assert support["outside"] == 0.5
    per_channel = Spline(5, 0, 4, channels=4).support(x)
    assert per_channel["counts"].tolist() == [2, 1, 0, 1]


def test_roughness_is_the_sum_of_squared_second_differences():
    assert Spline(4).roughness({"values": jnp.array([0.0, 1.0, 0.0, 0.0])}) == 5
    assert Spline(4, channels=2).roughness({"values": jnp.array([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.0, 0.0]])}) == 5


def test_starts():
    np.testing.assert_array_equal(Spline(5, init="constant").init(None)["values"], np.full(5, 0.01, np.float32))
    np.testing.assert_array_equal(Spline(5, init="identity").init(None)["values"], [-4, -2, 0, 2, 4])
    np.testing.assert_array_equal(Spline(5, init="relu", channels=3).init(None)["values"], [[0, 0, 0, 2, 4]] * 3)
    assert Spline(**Spline(5, init="sin", channels=2).options()) == Spline(5, init="sin", channels=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Spline().knots = 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"knots": 1}, "at least 2"),
        ({"knots": 4.5}, "knots=4.5"),
        ({"low": 1.0, "high": 1.0}, "low < high"),
        ({"high": float("inf")}, "finite"),
        ({"extrapolation": "liner"}, "'linear'"),
        ({"init": "gleu"}, "'gelu'"),
        ({"constant": float("nan")}, "constant=nan"),
        ({"channels": 0}, "channels=0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Spline(**options)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(32,\).*\(31,\)"):
        Spline().apply({"values": jnp.zeros(31)}, 0.0)
    with pytest.raises(ValueError, match=r"\[\.\.\., 3\]"):
        Spline(channels=3).apply({"values": jnp.zeros((3, 32))}, jnp.zeros((5, 4)))
