"""The reference itself: against loops and closed forms, masks one by one, and causality by gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax import scores
from ssa_jax.attention import attend, attention_weights

B, T, S, H, G, E = 2, 6, 7, 4, 2, 8


def tensors(seed=0, queries=T, keys=S, groups=G, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    shapes = ((B, queries, H, E), (B, keys, groups, E), (B, keys, groups, E))
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def by_loops(q, k, v, weigh):
    """One query of one head at a time; weigh(logits [S], batch, head, query) -> weights [S]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, t, h in np.ndindex(*q.shape[:3]):
        group = h // (q.shape[2] // k.shape[2])
        logits = k[b, :, group] @ q[b, t, h] / np.sqrt(q.shape[-1])
        out[b, t, h] = weigh(logits, b, h, t) @ v[b, :, group]
    return out


def ssa(logits, visible):
    weights = np.where(visible, (1 + 0.8 * np.abs(logits)) ** (np.sign(logits) * 1.5), 0)
    return weights / max(weights.sum(), 1e-300)


SSA = scores.get("ssa", b=0.8, n=1.5, learn=())
POSITION = np.arange(S)
SEGMENTS = (np.array([[0, 0, 1, 1, 2, 5]] * B), np.array([[0, 1, 1, 2, 2, 0, 3]] * B))
MASK = np.random.default_rng(1).random((B, 1, T, S)) < 0.6
PATTERNS = {
    "none": ({}, lambda b, h, t: POSITION >= 0),
    "causal": ({"causal": True}, lambda b, h, t: t >= POSITION),
    "window": ({"window": 2}, lambda b, h, t: np.abs(t - POSITION) < 2),
    "causal window": ({"causal": True, "window": 3}, lambda b, h, t: (t >= POSITION) & (t - POSITION < 3)),
    "segments": ({"segment_ids": SEGMENTS}, lambda b, h, t: SEGMENTS[0][b, t] == SEGMENTS[1][b]),
    "mask": ({"mask": MASK}, lambda b, h, t: MASK[b, 0, t]),
    "mask by head": ({"mask": MASK[:1, :, :1].repeat(H, 1)}, lambda b, h, t: MASK[0, 0, 0]),
    "all": (
        {"causal": True, "window": 4, "segment_ids": SEGMENTS, "mask": MASK},
        lambda b, h, t: (t >= POSITION) & (t - POSITION < 4) & (SEGMENTS[0][b, t] == SEGMENTS[1][b]) & MASK[b, 0, t],
    ),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_mask_against_a_loop_over_queries(pattern):
    arguments, visible = PATTERNS[pattern]
    arguments = {
        key: jax.tree.map(jnp.asarray, value) if key in ("mask", "segment_ids") else value
        for key, value in arguments.items()
    }
    q, k, v = tensors()
    out = attend(q, k, v, score=SSA, backend="dense", **arguments)
    expected = by_loops(q, k, v, lambda logits, b, h, t: ssa(logits, visible(b, h, t)))
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(B, H, T, S), (H, 1, S), (T, S), ()])
def test_bias_is_added_to_the_logits(shape):
    q, k, v = tensors()
    bias = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    full = np.broadcast_to(bias, (B, H, T, S))
    out = attend(q, k, v, score=SSA, bias=jnp.asarray(bias), backend="dense")
    np.testing.assert_allclose(out, by_loops(q, k, v, lambda z, b, h, t: ssa(z + full[b, h, t], True)), atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_is_jax_dot_product_attention(causal):
    q, k, v = tensors(keys=T)
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
    np.testing.assert_allclose(attend(q, k, v, causal=causal, backend="dense"), expected, atol=2e-6)


@pytest.mark.parametrize("name", scores.names())
def test_causality_by_gradients(name):
    q, k, v = tensors(keys=T)
    score = scores.get(name)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.arange(leaf.size).reshape(leaf.shape), score.init(H))

    def at(t):
        return jax.grad(lambda k, v: attend(q, k, v, score=score, params=params, causal=True)[:, t].sum(), (0, 1))(k, v)

    for gradient in jax.jit(at)(2):
        assert (gradient[:, 3:] == 0).all()
        assert (gradient[:, :3] != 0).any()


@pytest.mark.parametrize("name", scores.names())
def test_weights_times_values_is_the_output(name):
    q, k, v = tensors()
    score = scores.get(name)
    arguments = {"score": score, "params": score.init(H), "causal": True}
    weights = attention_weights(q, k, **arguments)
    assert weights.shape == (B, H, T, S)
    out = jnp.einsum("bhts,bshe->bthe", weights, jnp.repeat(v, H // G, axis=2))
    np.testing.assert_allclose(attend(q, k, v, backend="dense", **arguments), out, atol=3e-6)


@pytest.mark.parametrize("name", [name for name in scores.names() if scores.get(name).learnable])
def test_parameters_change_the_output(name):
    q, k, v = tensors()
    score = scores.get(name)
    start = score.init(H)
    changed = jax.tree.map(lambda leaf: leaf + 0.3 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), start)
    outputs = [attend(q, k, v, score=score, params=params, backend="dense") for params in (start, changed)]
    assert jnp.abs(outputs[0] - outputs[1]).max() > 1e-4


def test_mixed_heads_use_their_own_member_and_their_own_keys():
    q, k, v = tensors()
    members = ("softmax", "cosformer", "sparsemax")
    out = attend(q, k, v, score=scores.get("mixed", members=members), causal=True, mask=jnp.asarray(MASK))
    k, v = (jnp.repeat(x, H // G, axis=2) for x in (k, v))
    for head in range(H):
        one = slice(head, head + 1)
        alone = attend(
            q[:, :, one], k[:, :, one], v[:, :, one], score=members[head % 3], causal=True, mask=jnp.asarray(MASK)
        )
        np.testing.assert_allclose(out[:, :, one], alone, atol=2e-6)


def test_bfloat16_in_and_out_but_not_inside():
    q, k, v = tensors(dtype=jnp.bfloat16)
    out = attend(q, k, v, score=SSA, backend="dense")
    assert out.dtype == jnp.bfloat16
    expected = by_loops(q, k, v, lambda z, b, h, t: ssa(z, True))
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=2e-2)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ({"backend": "dens"}, "Did you mean 'dense'"),
        ({"score": "soft"}, "Unknown score function"),
        ({"mask": jnp.ones((T, S))}, "masks are boolean"),
        ({"mask": jnp.ones((T, T), bool)}, "does not broadcast"),
        ({"bias": jnp.ones((3, H, T, S))}, "does not broadcast"),
        ({"score": "cosformer", "bias": jnp.ones((T, S))}, "no logits"),
        ({"segment_ids": jnp.zeros((B, T), int)}, "segment_ids"),
        ({"window": 0}, "at least 1"),
        ({"score": "ssa"}, "learnable"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        attend(*tensors(), **arguments)


def test_shapes_that_do_not_fit_are_refused():
    q, k, v = tensors(groups=3)
    with pytest.raises(ValueError, match="G dividing H"):
        attend(q, k, v)
