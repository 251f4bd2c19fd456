"""Schedules, optimizers and the sums of the objective, each against what its formula says."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssa_jax.training.objective import token_sums
from ssa_jax.training.optimizers import decayed, descend, direction
from ssa_jax.training.schedules import SCHEDULES, schedule


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule_warms_up_and_ends_at_its_floor(kind):
    curve = np.array([float(schedule(kind, 100, warmup=10, floor=0.1)(age)) for age in range(101)])
    np.testing.assert_allclose(curve[:10], np.arange(1, 11) / 10, atol=1e-6)
    assert curve.max() <= 1 + 1e-6
    assert curve[-1] == pytest.approx(1.0 if kind == "constant" else 0.1, abs=1e-6)
    assert (np.diff(curve[10:]) <= 1e-6).all()


def test_adamw_direction_is_optax_adamw():
    weights = {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3), "score_0": {"n": jnp.ones((2, 2))}}
    gradients = jax.tree.map(lambda w: jnp.cos(w), weights)
    ours, theirs = (
        direction("adamw", 0.9, 0.98, weight_decay=0.1),
        optax.adamw(3e-3, 0.9, 0.98, weight_decay=0.1, mask=decayed),
    )
    a, b, held_a, held_b = weights, weights, ours.init(weights), theirs.init(weights)
    for _ in range(3):
        ahead, held_a = ours.update(gradients, held_a, a)
        a = descend(a, ahead, jnp.float32(3e-3))
        updates, held_b = theirs.update(gradients, held_b, b)
        b = optax.apply_updates(b, updates)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)


def test_only_matrices_decay():
    weights = {
        "kernel": jnp.ones((2, 3)),
        "bias": jnp.ones(3),
        "score_0": {"n": jnp.ones((2, 2))},
        "scale": jnp.ones(()),
    }
    assert decayed(weights) == {"kernel": True, "bias": False, "score_0": {"n": False}, "scale": False}


def test_clip_bounds_the_gradient_and_sgd_is_plain():
    gradient = {"w": jnp.array([[3.0, 4.0]])}
    along = direction("sgd", b1=0.0, clip=1.0)
    ahead, _ = along.update(gradient, along.init(gradient), gradient)
    np.testing.assert_allclose(ahead["w"], [[0.6, 0.8]], rtol=1e-6)


@pytest.mark.parametrize(
    "call, message", [(lambda: direction("adan"), "adam"), (lambda: schedule("cosin", 10), "cosine")]
)
def test_unknown_names_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_token_sums_count_the_masked_targets_only():
    logits = jnp.log(jnp.array([[[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], [[0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]]))
    targets = jnp.array([[9, 0, 1], [9, 1, 2]])  # the first column is before the answers
    mask = jnp.array([[False, True, True], [False, True, False]])
    loss, sums = token_sums(logits, targets, mask)
    assert float(loss) == pytest.approx(-np.log(0.7) - np.log(0.8) - np.log(0.1), rel=1e-5)
    assert [float(x) for x in sums[1:]] == [2, 3, 1, 2]


def test_masked_targets_get_no_gradient():
    logits, mask = jnp.zeros((1, 2, 3)), jnp.array([[True, False]])
    gradient = jax.grad(lambda x: token_sums(x, jnp.array([[1, 1]]), mask)[0])(logits)
    assert (gradient[0, 1] == 0).all() and (gradient[0, 0] != 0).all()
