"""What every registered function keeps to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax import functions


def random(*shape, seed=0, scale=2.0):
    return np.random.default_rng(seed).normal(size=shape) * scale


def function_and_params(name):
    function = functions.get(name)
    return function, function.init(jax.random.key(0))


@pytest.fixture(params=functions.names())
def name(request):
    return request.param


def test_init_is_pure_and_says_what_learns(name):
    function, params = function_and_params(name)
    assert function.name == name
    assert function.learnable == bool(params)
    again = function.init(jax.random.key(0))
    assert params.keys() == again.keys()
    for key, array in params.items():
        assert array.dtype == jnp.float32
        np.testing.assert_array_equal(array, again[key])


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_shape_and_dtype_are_kept(name, shape, dtype):
    function, params = function_and_params(name)
    y = function.apply(params, jnp.asarray(random(*shape), dtype))
    assert (y.shape, y.dtype) == (shape, dtype)
    assert jnp.isfinite(y).all()


def test_low_precision_is_the_float32_result_rounded(name):
    function, params = function_and_params(name)
    x = jnp.asarray(random(200), jnp.bfloat16)
    rounded = function.apply(params, x.astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(function.apply(params, x), rounded)


def test_plain_numbers_are_taken(name):
    function, params = function_and_params(name)
    y = function.apply(params, 1)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, function.apply(params, jnp.array(1.0)))


def test_jit_and_vmap_equal_eager(name):
    function, params = function_and_params(name)
    x = jnp.asarray(random(4, 50), jnp.float32)
    eager = function.apply(params, x)
    np.testing.assert_allclose(jax.jit(function.apply)(params, x), eager, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(function.apply, (None, 0))(params, x), eager, rtol=1e-6, atol=1e-6)


def test_nan_stays_nan_and_alone(name):
    function, params = function_and_params(name)
    y = function.apply(params, jnp.array([0.5, jnp.nan, -0.5]))
    assert jnp.isnan(y).tolist() == [False, True, False]


def test_gradients_are_finite_differences(name):
    function, params = function_and_params(name)
    with jax.enable_x64(True):
        x = random(40)
        # away from the kinks: relu's at 0, and those of the default knots and ranges
        position = (x + 4) * 31 / 8
        x = x[(np.abs(x) > 1e-3) & (np.abs(position - np.round(position)) > 1e-3)]
        params = jax.tree.map(lambda array: array.astype(jnp.float64), params)
        dy, small = jnp.asarray(random(x.size, seed=1)), 1e-5

        @jax.jit
        def total(params, x):
            return jnp.sum(dy * function.apply(params, x))

        by_params, by_x = jax.jit(jax.grad(total, (0, 1)))(params, x)
        ahead, behind = (function.apply(params, x + sign * small) for sign in (1, -1))
        np.testing.assert_allclose(by_x, dy * (ahead - behind) / (2 * small), rtol=1e-6, atol=1e-7)
        for key, array in params.items():
            for place in range(array.size):
                change = np.zeros(array.shape)
                change.flat[place] = small
                ahead, behind = (total({**params, key: array + sign * change}, x) for sign in (1, -1))
                np.testing.assert_allclose(by_params[key][place], (ahead - behind) / (2 * small), rtol=1e-6, atol=1e-7)


def test_functions_are_values(name):
    one, other = functions.get(name), functions.get(name)
    assert one == other and hash(one) == hash(other) and one is not other
    assert functions.get(name, **one.options()) == one
    assert jax.jit(lambda function, x: function.apply(function.init(None), x), static_argnums=0)(one, 1.0).shape == ()


def test_files_give_back_function_and_params(name, tmp_path):
    function, params = function_and_params(name)
    params = jax.tree.map(lambda array: array + jnp.asarray(random(*array.shape), jnp.float32), params)
    learned = functions.load(functions.save(tmp_path / name, function, params))
    assert learned.function == function
    assert learned.params.keys() == params.keys()
    for key, array in params.items():
        np.testing.assert_array_equal(learned.params[key], array)
    assert learned.support is None
    np.testing.assert_array_equal(learned(0.3), function.apply(params, 0.3))


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ValueError, match=r"'spline'.*gelu.*relu2"):
        functions.get("splin")
    with pytest.raises(ValueError, match=r"'knots'.*init"):
        functions.get("spline", knot=3)
    with pytest.raises(ValueError, match="option"):
        functions.get("gelu", approximate=True)
