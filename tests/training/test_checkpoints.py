"""Checkpoints: what is saved comes back bit for bit, the best is kept beside the latest, damage is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax.training.checkpoints import Checkpoints
from ssa_jax.training.mesh import make_mesh, shared_sharding

MESH = make_mesh(1, devices=jax.devices()[:1])
STATE = {"step": jnp.int32(3), "weights": jnp.linspace(0, 1, 7), "low": jnp.ones((2, 3), jnp.bfloat16)}


def like(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shared_sharding(MESH)), state)


def test_round_trip_is_bit_exact_and_keeps_meta(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(like(STATE)) is None
        checkpoints.save(3, STATE, {"seconds": 1.25}, score=0.5)
        checkpoints.wait()
        state, meta = checkpoints.restore(like(STATE))
    assert meta == {"seconds": 1.25}
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), state, STATE)


def test_latest_and_best_are_kept(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for step, score in ((1, 0.1), (2, 0.9), (3, float("nan")), (4, 0.2)):
            checkpoints.save(step, STATE, {}, score)
        checkpoints.wait()
        assert sorted(checkpoints.manager.all_steps()) == [2, 4]


def test_state_may_be_donated_right_after_saving(tmp_path):
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)
    state = jax.tree.map(jnp.copy, STATE)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, 0.0)
        overwrite(state)
        checkpoints.wait()
        restored, _ = checkpoints.restore(like(STATE))
    np.testing.assert_array_equal(restored["weights"], STATE["weights"])


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Checkpoints(tmp_path / "file" / "checkpoints")
