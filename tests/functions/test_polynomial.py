"""Chebyshev polynomials: evaluation, and the fit to a learned spline."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax.functions import Polynomial, Spline, fit_polynomial


def random(*shape, seed=0, scale=1.0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, jnp.float32)


@pytest.mark.parametrize("degree", [1, 2, 5, 16])
def test_values_and_gradients_are_numpys(degree):
    polynomial, coefficients = Polynomial(degree, -2, 3), random(degree + 1)
    x = jnp.linspace(-1.9, 2.9, 200)
    reference = np.polynomial.Chebyshev(np.asarray(coefficients, np.float64), domain=[-2, 3])
    np.testing.assert_allclose(polynomial.apply({"coefficients": coefficients}, x), reference(x), rtol=1e-5, atol=1e-5)
    slope = jax.jit(jax.vmap(jax.grad(lambda x: polynomial.apply({"coefficients": coefficients}, x))))(x)
    np.testing.assert_allclose(slope, reference.deriv()(x), rtol=1e-4, atol=1e-4)


def test_constant_outside_and_nan_stays():
    polynomial, params = Polynomial(3, -1, 1), {"coefficients": random(4)}
    y = polynomial.apply(params, jnp.array([-1.0, -5.0, -jnp.inf, 1.0, 5.0, jnp.inf, jnp.nan]))
    assert y[0] == y[1] == y[2] and y[3] == y[4] == y[5] and jnp.isnan(y[6])
    assert jax.grad(lambda x: polynomial.apply(params, x))(5.0) == 0


def test_a_fit_recovers_a_polynomial():
    source, params = Polynomial(5, -3, 3), {"coefficients": random(6)}
    fitted, found, error = fit_polynomial(source, params, jnp.arange(1.0, 9.0), degree=5)
    assert fitted == Polynomial(5, -3, 3)
    np.testing.assert_allclose(found["coefficients"], params["coefficients"], rtol=1e-5, atol=1e-6)
    assert error < 1e-6


def test_a_higher_degree_fits_a_smooth_spline_better():
    spline = Spline(64, -4, 4, init="gelu")
    errors = [fit_polynomial(spline, spline.init(None), None, degree)[2] for degree in (2, 6, 12)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2] > 0


def test_a_sawtooth_does_not_fit():
    spline = Spline(33)
    teeth = {"values": jnp.tile(jnp.array([1.0, -1.0]), 17)[:33]}
    assert fit_polynomial(spline, teeth, None, degree=8)[2] > 0.9


def test_the_fit_cares_for_what_was_visited():
    spline, kink = Spline(33, init="relu"), jnp.zeros(32).at[20:30].set(100.0)
    params = spline.init(None)
    _, found, error = fit_polynomial(spline, params, {"counts": kink, "outside": jnp.zeros(())}, degree=4)
    assert error < 0.02 < fit_polynomial(spline, params, None, degree=4)[2]
    # what was not visited is fitted loosely, and stays bounded
    assert jnp.abs(Polynomial(4).apply(found, jnp.linspace(-4, 4, 100))).max() < 20


def test_a_function_that_is_zero_has_no_error():
    spline = Spline(9, init="constant", constant=0.0)
    assert fit_polynomial(spline, spline.init(None), None, degree=3)[2] == 0


@pytest.mark.parametrize(
    ("spline", "support", "message"),
    [
        (Spline(9, channels=2), None, "2 channels"),
        (Spline(9), jnp.ones(9), "8 intervals"),
        (Spline(9), jnp.zeros(8), "not all zero"),
        (Spline(9), -jnp.ones(8), "not negative"),
        (Spline(9), jnp.ones(8).at[0].set(jnp.nan), "finite"),
    ],
)
def test_what_cannot_be_fitted_is_refused(spline, support, message):
    with pytest.raises(ValueError, match=message):
        fit_polynomial(spline, spline.init(None), support, degree=3)


@pytest.mark.parametrize("options", [{"degree": 0}, {"degree": 2.5}, {"low": 4.0}, {"low": float("-inf")}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="polynomial needs"):
        Polynomial(**options)
    with pytest.raises(ValueError, match="9 coefficients"):
        Polynomial().apply({"coefficients": jnp.zeros(8)}, 0.0)
