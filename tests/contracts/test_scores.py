"""Laws that every registered score function keeps, and the limits that single ones must reach."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssa_jax import scores

HEADS = 3
SHAPE = (2, HEADS, 5, 7)
VARIANTS = [(name, {}) for name in scores.names()] + [
    ("temperature", {"learn": False, "temperature": 0.7}),
    ("temperature", {"per": "layer"}),
    ("ssa", {"per": "layer", "rate": 10.0}),
    ("ssa", {"parametrisation": "exp"}),
    ("ssa", {"parametrisation": "free", "learn": ("n",), "b": 0.8}),
    ("ssa", {"learn": (), "b": 0.25, "n": 4.0}),
    ("entmax", {"alpha": 2.0, "by": "sort"}),
    ("entmax", {"by": "sort"}),
    ("entmax", {"alpha": 1.3}),
    ("entmax", {"learn": True}),
    ("entmax", {"learn": True, "per": "layer", "alpha": 1.01}),
    ("sa_softmax", {"form": "plain"}),
    ("spline", {"extrapolation": "constant", "start": "gelu", "per": "layer"}),
    ("feature_map", {"function": "relu"}),
    ("cosformer", {"horizon": 20}),
    ("mixed", {"members": ("sigmoid", "sparsemax", "ssa", "spline")}),
]
every_name = pytest.mark.parametrize("name", scores.names())
every_score = pytest.mark.parametrize("name, options", VARIANTS, ids=lambda value: str(value).replace(" ", ""))


def random_logits(seed=0, shape=SHAPE, scale=2.0, dtype=jnp.float32):
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape), dtype)


def random_mask(seed=1, shape=SHAPE):
    """Hides about a third, one whole row, and all but one key of another row."""
    mask = np.random.default_rng(seed).random(shape) < 0.7
    mask[..., 2, :] = False
    mask[..., 3, :] = np.arange(shape[-1]) == 4
    mask[..., 0, 0] = True
    return jnp.asarray(mask)


def build(name, options, heads=HEADS, dtype=jnp.float32, perturb=0.1):
    """A score function and parameters moved away from their start, a little differently for each head."""
    score = scores.get(name, **options)
    params = score.init(heads)
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(2)
    moved = [jnp.asarray(leaf, dtype) + jnp.asarray(perturb * rng.random(leaf.shape), dtype) for leaf in leaves]
    return score, jax.tree.unflatten(tree, moved)


def cotangent_like(logits):
    """Numbers that every dtype holds exactly."""
    return random_logits(seed=3, shape=logits.shape, dtype=jnp.bfloat16).astype(logits.dtype)


def weights_and_gradients(score, logits, mask, params):
    """Compiled, since most tests share the shapes; see `eager_weights_and_gradients`."""
    mask = jnp.ones(logits.shape, bool) if mask is None else mask
    return jax.jit(eager_weights_and_gradients, static_argnums=0)(score, logits, mask, params)


def eager_weights_and_gradients(score, logits, mask, params):
    """Weights, and the gradients of a sum that weighs every entry differently."""
    weights, pullback = jax.vjp(lambda z, p: score.weights(z, mask, p), logits, params)
    return weights, *pullback(cotangent_like(logits))


@every_score
def test_start_values_have_one_row_a_head_or_one_in_all(name, options):
    score = scores.get(name, **options)
    params = score.init(HEADS)
    assert bool(jax.tree.leaves(params)) == score.learnable
    assert hash(score) == hash(scores.get(name, **options))
    assert score.family in ("log-weight", "simplex", "kernel", "product")
    for leaf in jax.tree.leaves(params):
        assert leaf.dtype == jnp.float32
        assert leaf.shape[0] == (1 if score.__dict__.get("per") == "layer" else leaf.shape[0])
        assert leaf.shape[0] <= HEADS


@every_score
@pytest.mark.parametrize("masked", [False, True])
def test_rows_sum_to_one_where_they_must(name, options, masked):
    score, params = build(name, options)
    mask = random_mask() if masked else jnp.ones(SHAPE, bool)
    weights = weights_and_gradients(score, random_logits(), mask, params)[0]
    sums = weights.sum(-1)
    alive = mask.any(-1)
    if score.family == "kernel":  # a row may have no positive product: then it is zero
        alive &= sums != 0
    if score.sums_to_one:
        # weights of both signs cancel, and their rounding with them
        assert (jnp.abs(sums - 1) <= 2e-6 * jnp.abs(weights).sum(-1))[alive].all()
    else:
        assert not np.allclose(sums[alive], 1, atol=1e-3)


@every_score
def test_masked_position_gets_no_weight_and_no_gradient(name, options):
    score, params = build(name, options)
    logits, mask = random_logits(), random_mask()
    # what is masked may hold anything
    poisoned = jnp.where(mask, logits, jnp.resize(jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3e38]), SHAPE))
    weights, by_logits, by_params = weights_and_gradients(score, poisoned, mask, params)
    assert (weights[~mask] == 0).all()
    assert (by_logits[~mask] == 0).all()
    clean_weights, clean_by_logits, clean_by_params = weights_and_gradients(score, logits, mask, params)
    np.testing.assert_array_equal(weights, clean_weights)
    np.testing.assert_array_equal(by_logits, clean_by_logits)
    jax.tree.map(np.testing.assert_array_equal, by_params, clean_by_params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((weights, by_logits, by_params)))


@every_score
def test_dead_row_is_zero(name, options):
    score, params = build(name, options)
    weights, by_logits, by_params = weights_and_gradients(score, random_logits(), jnp.zeros(SHAPE, bool), params)
    assert (weights == 0).all()
    assert (by_logits == 0).all()
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(by_params))


@every_name
def test_hidden_keys_do_not_matter(name):
    score, params = build(name, {"horizon": SHAPE[-1]} if name == "cosformer" else {})
    logits = random_logits()
    mask = jnp.arange(SHAPE[-1]) < 5
    weights = jax.jit(score.weights)
    np.testing.assert_allclose(
        weights(logits, mask, params)[..., :5], weights(logits[..., :5], None, params), atol=1e-6
    )


@every_score
def test_permuting_keys_permutes_weights(name, options):
    if name == "cosformer":
        pytest.skip("positions enter its weights")
    score, params = build(name, options)
    logits, mask = random_logits(), random_mask()
    order = np.random.default_rng(4).permutation(SHAPE[-1])
    permuted, plain = (
        weights_and_gradients(score, logits[..., keys], mask[..., keys], params)[0] for keys in (order, slice(None))
    )
    np.testing.assert_allclose(permuted, plain[..., order], atol=2e-6)


@every_name
def test_jit_equals_eager(name):
    score, params = build(name, {})
    logits, mask = random_logits(), random_mask()
    jitted = weights_and_gradients(score, logits, mask, params)
    eager = eager_weights_and_gradients(score, logits, mask, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6, rtol=1e-5), jitted, eager)


@every_name
def test_vmap_over_replicas_equals_a_loop(name):
    score, params = build(name, {})
    logits = jnp.stack([random_logits(seed) for seed in (5, 6)])
    params = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 0.05]), params)
    mask = random_mask()
    mapped = jax.jit(jax.vmap(lambda z, p: eager_weights_and_gradients(score, z, mask, p)))(logits, params)
    for r in range(2):
        single = weights_and_gradients(score, logits[r], mask, jax.tree.map(lambda leaf, r=r: leaf[r], params))
        replica = jax.tree.map(lambda leaf, r=r: leaf[r], mapped)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6, rtol=1e-5), replica, single)


@every_name
def test_one_matrix_is_one_head(name):
    score, params = build(name, {}, heads=1)
    logits = random_logits(shape=SHAPE[-2:])
    np.testing.assert_array_equal(score.weights(logits, None, params), score.weights(logits[None], None, params)[0])


@every_score
def test_gradients_match_finite_differences_in_float64(name, options):
    with jax.enable_x64(True):
        score, params = build(name, options, dtype=jnp.float64)
        logits, mask = random_logits(scale=1.0, dtype=jnp.float64), random_mask()
        leaves, tree = jax.tree.flatten((logits, params))

        def loss(leaves):
            weights = weights_and_gradients(score, *_logits_mask_params(tree, leaves, mask))[0]
            assert weights.dtype == jnp.float64
            return jnp.vdot(weights, cotangent_like(logits))

        gradients = jax.tree.leaves(weights_and_gradients(score, logits, mask, params)[1:])
        for i, gradient in enumerate(gradients):
            direction = random_logits(seed=9, shape=gradient.shape, dtype=jnp.float64)
            up, down = ([*leaves[:i], leaves[i] + step * direction, *leaves[i + 1 :]] for step in (1e-6, -1e-6))
            np.testing.assert_allclose(
                jnp.vdot(gradient, direction), (loss(up) - loss(down)) / 2e-6, rtol=1e-5, atol=1e-7
            )


def _logits_mask_params(tree, leaves, mask):
    logits, params = jax.tree.unflatten(tree, leaves)
    return logits, mask, params


@pytest.mark.parametrize(
    "name, options, dtype, bound",
    [(*variant, jnp.float32, 2e-5) for variant in VARIANTS]
    + [(name, {}, jnp.bfloat16, 2e-2) for name in scores.names()],
    ids=str,
)
def test_precision_against_float64(name, options, dtype, bound):
    """The same logits, rounded to dtype once, through the float64 form: what is left is the score's own error."""
    score, params = build(name, options)
    logits, mask = random_logits(dtype=dtype), random_mask()
    weights, by_logits, by_params = weights_and_gradients(score, logits, mask, params)
    assert weights.dtype == by_logits.dtype == dtype
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), (logits, params))
        exact = weights_and_gradients(score, wide[0], mask, wide[1])
        for ours, truth in zip(jax.tree.leaves((weights, by_logits, by_params)), jax.tree.leaves(exact), strict=True):
            scale = np.abs(np.asarray(truth)).max() + 1e-12
            np.testing.assert_allclose(np.asarray(ours, np.float64), truth, atol=bound * scale, rtol=0)


@every_score
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
def test_zero_and_huge_logits_stay_finite(name, options, size):
    score, params = build(name, options)
    for sign in (1, -1):
        logits = sign * size * jnp.abs(random_logits())
        results = weights_and_gradients(score, logits, random_mask(), params)
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
    results = weights_and_gradients(score, size * random_logits(), random_mask(), params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(results))


def test_zero_logits_leave_ssa_a_gradient_and_uniform_weights():
    score = scores.get("ssa", b=0.8, n=1.5, learn=())
    weights, by_logits, _ = weights_and_gradients(score, jnp.zeros(SHAPE), None, {})
    np.testing.assert_allclose(weights, 1 / SHAPE[-1], rtol=1e-6)
    softmax = weights_and_gradients(scores.get("softmax"), jnp.zeros(SHAPE), None, {})
    np.testing.assert_allclose(by_logits, 0.8 * 1.5 * softmax[1], rtol=1e-5)


@pytest.mark.parametrize("m, bound", [(10, 0.1), (100, 0.011), (1000, 0.0012)])
def test_ssa_tends_to_softmax_as_b_is_1_over_m_and_n_is_m(m, bound):
    logits = random_logits(shape=(1, 64, 16), scale=1.0)
    error = jnp.abs(
        scores.get("ssa", b=1 / m, n=float(m), learn=()).weights(logits) - scores.get("softmax").weights(logits)
    ).max()
    assert bound / 10 < error < bound


@pytest.mark.parametrize("n", [1.5, 3.0])
def test_magnified_ssa_keeps_every_positive_logit(n):
    logits = jnp.array([[[3.0, 2.0, 1.0, 0.0, -1.0]]])
    weights = scores.get("ssa", n=n, learn=()).weights(1e6 * logits)
    limit = jnp.maximum(logits, 0) ** n
    np.testing.assert_allclose(weights, limit / limit.sum(-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("b, n, uniform", [(1e-6, 1.5, True), (1.0, 1e4, False)])
def test_ssa_is_uniform_for_small_b_and_one_hot_for_large_n(b, n, uniform):
    logits = random_logits(shape=(1, 4, 6))
    weights = scores.get("ssa", b=b, n=n, learn=()).weights(logits)
    expected = jnp.full_like(weights, 1 / 6) if uniform else jax.nn.one_hot(logits.argmax(-1), 6)
    np.testing.assert_allclose(weights, expected, atol=1e-4)


def test_logarithm_of_ssa_is_exact_for_small_logits_too():
    from ssa_jax.scores.ssa import log_of_1_plus

    x = jnp.logspace(-12, 9, 2001)
    # as compiled in earnest: an optimizer that simplified (1 + x) - 1 would spoil it
    compiled = jax.jit(log_of_1_plus).lower(x).compile(compiler_options={"xla_backend_optimization_level": 3})
    np.testing.assert_allclose(compiled(x), np.log1p(np.asarray(x, np.float64)), rtol=4e-7)


def test_ssa_rate_multiplies_the_step_of_an_adam_like_optimizer():
    start = {rate: scores.get("ssa", rate=rate) for rate in (1.0, 10.0)}
    theta = {rate: np.asarray(score.theta(score.init(1)))[:, 0] for rate, score in start.items()}
    np.testing.assert_allclose(theta[1.0], theta[10.0], rtol=1e-6)
    np.testing.assert_allclose(theta[1.0], [1.0, 1.5], rtol=1e-6)
    moved = {
        rate: np.asarray(score.theta(jax.tree.map(lambda leaf: leaf + 1e-3, score.init(1))))[:, 0]
        for rate, score in start.items()
    }
    np.testing.assert_allclose((moved[10.0] - theta[10.0]) / (moved[1.0] - theta[1.0]), 10, rtol=2e-2)


@pytest.mark.parametrize("masked", [False, True])
def test_sparsemax_is_the_projection_on_the_simplex(masked):
    logits = random_logits(shape=(1, 40, 9))
    mask = jnp.arange(9) < (6 if masked else 9)
    project = jax.jit(jax.vmap(optax.projections.projection_simplex))
    expected = project(logits[0][:, mask])
    for score in (scores.get("sparsemax"), scores.get("sparsemax", by="sort"), scores.get("entmax", alpha=2.0)):
        np.testing.assert_allclose(score.weights(logits, mask)[0][:, mask], expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_entmax_by_bisection_is_entmax_by_sort(alpha):
    from ssa_jax.scores.entmax import entmax_by_bisection, entmax_by_sort

    logits, mask = random_logits(), random_mask()
    by_bisection = entmax_by_bisection(logits, mask, jnp.float32(alpha))
    np.testing.assert_allclose(entmax_by_sort(logits, mask, alpha), by_bisection, atol=2e-6)


def test_entmax_tends_to_softmax_as_alpha_tends_to_1():
    logits, mask = random_logits(), random_mask()
    softmax = scores.get("softmax").weights(logits, mask)
    errors = [
        float(jnp.abs(scores.get("entmax", alpha=alpha).weights(logits, mask) - softmax).max())
        for alpha in (1.3, 1.1, 1.01, 1.001)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


@pytest.mark.parametrize(
    "score, softmax_logits",
    [
        (scores.get("temperature", learn=False, temperature=0.5), lambda z: 2 * z),
        (scores.get("spline"), lambda z: z),
        (scores.get("ssmax", s=1 / np.log(SHAPE[-1])), lambda z: z),
    ],
    ids=["temperature", "spline", "ssmax"],
)
def test_members_that_can_be_softmax_are(score, softmax_logits):
    logits = random_logits(scale=6.0)
    expected = scores.get("softmax").weights(softmax_logits(logits))
    np.testing.assert_allclose(score.weights(logits, None, score.init(HEADS)), expected, atol=3e-6)


def test_softmax1_is_softmax_with_one_more_key():
    logits = random_logits()
    with_zero = jnp.concatenate([logits, jnp.zeros((*SHAPE[:-1], 1))], -1)
    expected = scores.get("softmax").weights(with_zero)[..., :-1]
    np.testing.assert_allclose(scores.get("softmax1").weights(logits), expected, atol=1e-6)
    assert (
        float(jnp.abs(scores.get("softmax1").weights(logits + 30) - scores.get("softmax").weights(logits)).max()) < 1e-6
    )
    assert float(scores.get("softmax1").weights(logits - 40).max()) < 1e-10


def test_sigmoid_is_biased_by_the_number_of_visible_keys():
    mask = jnp.arange(7) < 4
    weights = scores.get("sigmoid").weights(jnp.zeros((1, 1, 7)), mask)
    np.testing.assert_allclose(weights, jnp.where(mask, 1 / 5, 0)[None, None], rtol=1e-6)


def test_cosformer_features_give_relu_products_weighed_by_distance():
    score = scores.get("cosformer")
    q, k = random_logits(shape=(1, 6, 4)), random_logits(seed=8, shape=(1, 6, 4))
    products = jnp.einsum("htf,hsf->hts", score.features(q, {}, 6), score.features(k, {}, 6))
    distance = jnp.arange(6)[:, None] - jnp.arange(6)
    expected = jax.nn.relu(q[0]) @ jax.nn.relu(k[0]).T * jnp.cos(jnp.pi / 2 * distance / 6)
    np.testing.assert_allclose(products[0], expected, atol=1e-5)
    rows = score.products_to_weights(products, jnp.ones((), bool))
    np.testing.assert_allclose(rows, score.weights((jax.nn.relu(q[0]) @ jax.nn.relu(k[0]).T)[None]), atol=1e-5)
    with pytest.raises(ValueError, match="horizon=5"):
        scores.get("cosformer", horizon=5).features(q, {}, 6)


def test_sa_softmax_forms():
    logits = jnp.array([[[3.0, 1.0, -1.0]]])
    softmax = jax.nn.softmax(logits)
    np.testing.assert_allclose(scores.get("sa_softmax", form="plain").weights(logits), logits * softmax, rtol=1e-6)
    expected = (logits + 1) / 4 * softmax
    np.testing.assert_allclose(scores.get("sa_softmax", form="ranged").weights(logits), expected, rtol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_mixed_heads_are_their_members(heads):
    members = ("softmax", "ssa", "sparsemax")
    score = scores.get("mixed", members=members)
    logits = random_logits(shape=(2, heads, 4, 6))
    params = score.init(heads)
    weights = score.weights(logits, None, params)
    for head in range(heads):
        member = scores.get(members[head % 3])
        own = member.init(1) if member.learnable else {}
        np.testing.assert_allclose(
            weights[:, head], member.weights(logits[:, head : head + 1], None, own)[:, 0], atol=1e-6
        )


@pytest.mark.parametrize("extrapolation", ["constant", "linear"])
def test_spline_in_a_kernel_equals_spline_by_gather(extrapolation):
    score = scores.get("spline", knots=9, low=-4.0, high=4.0, extrapolation=extrapolation)
    values = random_logits(shape=(9,))
    logits = jnp.concatenate([random_logits(shape=(50,), scale=4.0), jnp.linspace(-4, 4, 9)[1:-1]])

    @jax.jit
    def value_and_gradients(theta):
        return score.log_weight(logits, theta), *score.log_weight_vjp(logits, theta, None, jnp.cos(logits))

    gathered, in_kernel = value_and_gradients(values), value_and_gradients(tuple(values))
    for ours, truth in zip(in_kernel, gathered, strict=True):
        np.testing.assert_allclose(jnp.stack([*ours]), truth, atol=2e-5)


@pytest.mark.parametrize(
    "name, options, complaint",
    [
        ("sofmax", {}, "Did you mean 'softmax'"),
        ("ssa", {"beta": 1.0}, "Allowed: b, learn, n, parametrisation, per, rate"),
        ("ssa", {"n": 1.0}, "n > 1 only"),
        ("ssa", {"learn": ("a",)}, "'b', 'n', both or neither"),
        ("ssa", {"parametrisation": "abs"}, "'softplus', 'exp' or 'free'"),
        ("ssa", {"b": -1.0}, "must be positive"),
        ("entmax", {"alpha": 1.0}, "softmax"),
        ("entmax", {"alpha": 1.3, "by": "sort"}, "only 1.5 and 2"),
        ("entmax", {"learn": True, "by": "sort"}, "only 1.5 and 2"),
        ("sparsemax", {"by": "luck"}, "'bisection' or 'sort'"),
        ("temperature", {"temperature": 0.0}, "must be positive"),
        ("temperature", {"per": "model"}, "'head' or 'layer'"),
        ("sa_softmax", {"form": "third"}, "'plain' or 'ranged'"),
        ("mixed", {"members": ()}, "one or more"),
    ],
)
def test_bad_name_or_option_says_what_is_allowed(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        scores.get(name, **options)


def test_learnable_score_without_params_is_refused():
    with pytest.raises(ValueError, match="params="):
        scores.get("ssa").weights(random_logits())
