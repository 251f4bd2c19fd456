"""Models: shapes and causality, options that do what they say, functions in `arch`, errors before compiling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax import functions, models

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, 6)), jnp.int32)


def decoder(**options):
    return models.get("decoder", **dict(vocab_size=7, length=6, layers=2, width=16, heads=4, hidden=24) | options)


def spline(**options):
    return functions.get("spline", **dict(knots=8) | options)


def start(model, inputs=TOKENS):
    return jax.jit(model.init)(jax.random.key(0), inputs)


def outputs(model, inputs=TOKENS):
    return jax.jit(model.apply)(start(model, inputs), inputs)


OPTIONS = [
    {},
    {"positions": "rope"},
    {"positions": "alibi"},
    {"positions": "none"},
    {"norm": "rmsnorm"},
    {"norm": "none", "skip": False, "mlp": False, "layers": 1},
    {"qk_norm": True, "pre_activation_norm": True},
    {"kv_heads": 2, "gated": True, "tied": True},
    {"dtype": "bfloat16", "remat": True},
    {"score": "ssa"},
    {"activation": spline(), "sharing": "per_layer"},
    {"activation": spline(), "sharing": "per_channel"},
    {"attention_place": "pre_qkv", "attention_function": spline()},
    {"attention_place": "score", "attention_function": spline(init="constant")},
    {"attention_place": "feature", "attention_function": spline(init="constant")},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_decoder_is_causal_and_last_answers_are_the_same(options):
    """Row t of the logits moves with tokens up to t only; asking for the last answers changes none of them."""
    model = decoder(**options)
    variables, apply = start(model), jax.jit(model.apply)
    # noise, so that constant functions do not hide a dependence
    variables = jax.tree.map(
        lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype), variables
    )
    logits = apply(variables, TOKENS)
    assert logits.shape == (2, 6, 7) and logits.dtype == jnp.float32 and bool(jnp.isfinite(logits).all())
    changed = apply(variables, TOKENS.at[:, 4].set((TOKENS[:, 4] + 1) % 7))
    np.testing.assert_allclose(logits[:, :4], changed[:, :4], atol=1e-5)
    assert float(jnp.abs(logits[:, 4:] - changed[:, 4:]).max()) > 1e-4
    last = jax.jit(decoder(**options, answers=2).apply)(variables, TOKENS)
    np.testing.assert_allclose(last, logits[:, -2:], atol=3e-2 if "dtype" in options else 1e-5)


def test_encoder_looks_both_ways_and_segments_separate():
    model = models.get("encoder", vocab_size=7, length=6, layers=1, width=16, heads=2)
    variables = start(model)
    changed, apply = TOKENS.at[:, 5].set((TOKENS[:, 5] + 1) % 7), jax.jit(model.apply)
    difference = lambda **kw: float(
        jnp.abs(apply(variables, TOKENS, **kw) - apply(variables, changed, **kw))[:, 0].max()
    )
    assert difference() > 1e-6
    assert difference(segments=jnp.array([[0, 0, 0, 1, 1, 1]] * 2)) == 0.0


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0), TOKENS)["arch"]


def test_functions_live_in_arch_by_their_sharing():
    sites = lambda **o: sorted(shapes(decoder(layers=4, activation=spline(), **o)))
    assert sites() == ["mlp_all"]
    assert sites(sharing="per_layer") == ["mlp_0", "mlp_1", "mlp_2", "mlp_3"]
    assert sites(sharing="middle_layers") == ["mlp_first", "mlp_last", "mlp_middle"]
    channels = shapes(decoder(activation=spline(), sharing="per_channel"))
    assert channels["mlp_0"]["function"]["values"].shape == (24, 8)
    assert shapes(decoder()) == {}


@pytest.mark.parametrize("place, site", [("score", "score_all"), ("feature", "score_all"), ("pre_qkv", "pre_qkv_all")])
def test_attention_functions_are_architecture_and_change_the_output(place, site):
    model = decoder(attention_place=place, attention_function=spline(init="relu"))
    variables = start(model)
    assert site in variables["arch"]
    moved = jax.tree.map(lambda v: v + jnp.linspace(0, 1, v.shape[-1]), variables["arch"])
    apply = jax.jit(model.apply)
    before, after = apply(variables, TOKENS), apply(variables | {"arch": moved}, TOKENS)
    assert float(jnp.abs(before - after).max()) > 1e-4


def test_shared_function_gets_gradient_from_every_layer():
    model = decoder(activation=spline(), layers=3)
    variables = start(model)
    loss = lambda arch: model.apply({"params": variables["params"], "arch": arch}, TOKENS).std()
    assert float(jnp.abs(jax.jit(jax.grad(loss))(variables["arch"])["mlp_all"]["function"]["values"]).max()) > 0


def test_remat_changes_no_gradient():
    grads = []
    for remat in (False, True):
        model = decoder(activation=spline(), remat=remat)
        variables = start(model)
        grads.append(jax.jit(jax.grad(lambda v, m=model: m.apply(v, TOKENS).std()))(variables))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *grads)


def test_visits_count_every_input_of_a_function():
    model = decoder(activation=spline(low=-50.0, high=50.0), pre_activation_norm=True)
    visits = jax.jit(model.visits)(start(model), TOKENS)
    assert float(visits["mlp_all"]["counts"].sum()) == 2 * TOKENS.size * 24  # layers x tokens x hidden
    assert float(visits["mlp_all"]["outside"]) == 0.0


def test_scores_run():
    """A changed parameter of the score function changes the logits; softmax and ssa differ on the same weights."""
    model = decoder(score="ssa")
    variables = start(model)
    params = variables["params"]
    moved = params | {"score_0": jax.tree.map(lambda x: x + 1.0, params["score_0"])}
    apply = jax.jit(model.apply)
    assert float(jnp.abs(apply(variables, TOKENS) - apply({"params": moved}, TOKENS)).max()) > 1e-7
    without = {k: v for k, v in params.items() if not k.startswith("score")}
    assert float(jnp.abs(jax.jit(decoder().apply)({"params": without}, TOKENS) - apply(variables, TOKENS)).max()) > 1e-7


@pytest.mark.parametrize("width, vocabulary", [(0, 2), (8, 7)])
def test_mlp_model_reads_bits_or_tokens(width, vocabulary):
    model = models.get(
        "mlp", vocab_size=vocabulary, outputs=3, length=6, width=width, hidden=16, layers=2, activation=spline()
    )
    inputs = TOKENS % vocabulary
    assert outputs(model, inputs=inputs).shape == (2, 1, 3)
    swapped = inputs[:, ::-1]
    assert float(jnp.abs(outputs(model, inputs=inputs) - outputs(model, inputs=swapped)).max()) > 1e-3


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("decodr", {}, "decoder"),
        ("decoder", {"heds": 2}, "heads"),
        ("decoder", {"width": 10, "heads": 4}, "width 10"),
        ("decoder", {"heads": 4, "kv_heads": 3}, "kv_heads 3"),
        ("decoder", {"positions": "ropes"}, "rope"),
        ("decoder", {"width": 12, "heads": 4, "positions": "rope"}, "even head width"),
        ("decoder", {"tied": True, "outputs": 3}, "vocab_size"),
        ("decoder", {"sharing": "all"}, "all_layers"),
        ("decoder", {"sharing": "per_channel"}, "per_channel"),
        ("decoder", {"dtype": "float64"}, "bfloat16"),
        ("mlp", {"width": 0, "vocab_size": 3}, "vocab_size 2"),
        ("mlp", {"answers": 4}, "4 answer"),
    ],
)
def test_impossible_models_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        shapes(models.get(name, **options))


def test_too_long_a_sequence_is_refused():
    with pytest.raises(ValueError, match="exceeds the model's length 6"):
        jax.eval_shape(decoder().init, jax.random.key(0), jnp.zeros((1, 7), jnp.int32))
