"""The laws of the step: one step for both stages, replicas as single runs, held-out means held out, loud failures."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax import functions, tasks
from ssa_jax.training.mesh import make_mesh, shared_sharding
from ssa_jax.training.state import births, make_replicas
from ssa_jax.training.step import init_state, make_step
from tests.training import small


def difference(a, b):
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.max(np.abs(x - y), initial=0)), a, b)))


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("mapping", ["vmap", "map"])
def test_replica_equals_single_run(mapping, devices):
    many = small.replicas(8, stagger=0.2, restart_every=12)
    plan = small.plan("frozen", restart_every=12)
    together, _ = small.run(plan, many, 20, mapping, devices)
    for r in (0, 3, 7):
        alone, _ = small.run(plan, jax.tree.map(lambda x: x[r : r + 1], many), 20)  # noqa: B023
        of_r = jax.tree.map(lambda x: x[r : r + 1], together.weights)  # noqa: B023
        assert difference(of_r, alone.weights) < 1e-5
    assert (
        difference(jax.tree.map(lambda x: x[:1], together.weights), jax.tree.map(lambda x: x[1:2], together.weights))
        > 1e-2
    )


@pytest.mark.parametrize("mode", ["held_out", "joint"])
def test_search_is_the_same_whatever_the_mapping_and_mesh(mode):
    reference, _ = small.run(small.plan(mode), small.replicas(8), 20)
    for mapping, devices in (("map", 1), ("vmap", 8), ("map", 4)):
        other, _ = small.run(small.plan(mode), small.replicas(8), 20, mapping, devices)
        assert difference(reference.arch, other.arch) < 1e-5
        assert difference(reference.weights, other.weights) < 1e-4


def test_data_and_model_axes_change_nothing():
    reference, _ = small.run(small.plan(), small.replicas(2), 10)
    mesh = make_mesh(2, data=2, model=2)
    assert dict(mesh.shape) == {"replica": 2, "data": 2, "model": 2}
    other, _ = small.run(small.plan(), small.replicas(2), 10, mesh=mesh)
    assert difference(reference.arch, other.arch) < 1e-5
    assert difference(reference.weights, other.weights) < 1e-4


def test_frozen_architecture_stays_bit_identical():
    before, _ = small.run(small.plan(), small.replicas(2), 5)
    after, _ = small.run(small.plan("frozen"), small.replicas(2), 20, arch=before.arch)
    assert jax.tree.all(jax.tree.map(np.array_equal, before.arch, after.arch))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spoiled(tasks.Parity):
    """Parity with the answers of one split inverted."""

    split: str = "test"

    def batch(self, key, split, size):
        batch = super().batch(key, split, size)
        return batch | ({"targets": 1 - batch["targets"]} if split == self.split else {})


@pytest.mark.parametrize("split, moved, still", [("weights", "weights", "arch"), ("architecture", "arch", "weights")])
def test_held_out_law(split, moved, still):
    """Inverting the answers of D_wts moves the weights and no knot; of D_arch the knots and no weight."""
    honest, _ = small.run(small.plan(), small.replicas(2), 1)
    spoiled, _ = small.run(small.plan(), small.replicas(2), 1, task=Spoiled(bits=6, split=split))
    assert difference(getattr(honest, moved), getattr(spoiled, moved)) > 1e-4
    assert jax.tree.all(jax.tree.map(np.array_equal, getattr(honest, still), getattr(spoiled, still)))


def test_joint_mode_learns_both_from_the_train_split():
    honest, _ = small.run(small.plan("joint"), small.replicas(2), 1)
    for split, changes in (("train", True), ("weights", False), ("architecture", False)):
        spoiled, _ = small.run(small.plan("joint"), small.replicas(2), 1, task=Spoiled(bits=6, split=split))
        assert (difference(honest.arch, spoiled.arch) > 1e-4) == changes
        assert (difference(honest.weights, spoiled.weights) > 1e-4) == changes


def test_search_costs_one_all_reduce_and_no_all_gather():
    replicas, plan = small.replicas(16, restart_every=20), small.plan(restart_every=20)
    mesh = make_mesh(16)
    state = init_state(small.model(), small.TASK, plan, replicas, mesh, "vmap", None)()
    step = make_step(small.model(), small.TASK, plan, mesh, "vmap")
    text = jax.jit(step).lower(state, jax.device_put(replicas, shared_sharding(mesh))).compile().as_text()
    assert text.count(" all-reduce(") + text.count(" all-reduce-start(") == 1
    assert "all-gather" not in text


def test_poisoned_replica_is_left_out_and_the_others_go_on():
    plan, replicas = small.plan(), small.replicas(3)
    mesh = make_mesh(3, devices=jax.devices()[:1])
    state = init_state(small.model(), small.TASK, plan, replicas, mesh, "vmap", None)()
    sick = state._replace(weights=jax.tree.map(lambda w: w.at[1].set(jnp.nan), state.weights))
    step = jax.jit(make_step(small.model(), small.TASK, plan, mesh, "vmap"))
    well_replicas = jax.tree.map(lambda x: x[jnp.array([0, 2])], replicas)
    well = init_state(
        small.model(), small.TASK, plan, well_replicas, make_mesh(2, devices=jax.devices()[:1]), "vmap", None
    )()
    for _ in range(5):
        sick, metrics = step(sick, replicas)
        well, _ = step(well, well_replicas)
    assert metrics.finite.tolist() == [True, False, True]
    assert difference(jax.tree.map(np.asarray, sick.arch), jax.tree.map(np.asarray, well.arch)) < 1e-6
    assert np.isfinite(sick.arch["mlp_all"]["function"]["values"]).all()


@pytest.mark.parametrize("mode", ["held_out", "joint"])
def test_accumulated_micro_batches_give_the_whole_batch(mode):
    whole, _ = small.run(small.plan(mode), small.replicas(2), 3)
    parts, _ = small.run(small.plan(mode, accumulate=4), small.replicas(2), 3)
    assert difference(whole.weights, parts.weights) < 1e-5
    assert difference(whole.arch, parts.arch) < 1e-5


def test_restarts_are_spread_over_the_period_and_give_fresh_weights():
    replicas = make_replicas(list(range(4)), 1e-3, restart_every=8)
    seen = [np.asarray(births(replicas, jnp.int32(step), 8)).tolist() for step in (0, 1, 2, 6, 7, 8, 9)]
    assert seen == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2], [0, 6, 4, 2], [0, 6, 4, 2], [8, 6, 4, 2], [8, 6, 4, 2]]
    plan = small.plan("frozen", restart_every=8, weights_schedule=lambda age: 0.0 * age)
    before, _ = small.run(plan, small.replicas(4, restart_every=8), 2)
    after, _ = small.run(plan, small.replicas(4, restart_every=8), 3)
    moved = np.abs(before.weights["readout"]["kernel"] - after.weights["readout"]["kernel"]).max((1, 2)) > 1e-3
    assert moved.tolist() == [False, False, False, True]


def test_staggered_replicas_wait_and_do_not_vote():
    _, metrics = small.run(small.plan(), small.replicas(2, stagger=0.5), 11)  # the second starts at step 10
    assert metrics.active[:, 1].tolist() == [False] * 10 + [True]
    waiting, _ = small.run(small.plan(), small.replicas(2, stagger=0.5), 10)
    alone, _ = small.run(small.plan(), small.replicas(1), 10)
    assert difference(waiting.arch, alone.arch) < 1e-6
    fresh, _ = small.run(small.plan(), small.replicas(2), 0)
    untouched = lambda tree: jax.tree.map(lambda x: x[1], tree)
    assert jax.tree.all(jax.tree.map(np.array_equal, untouched(waiting.weights), untouched(fresh.weights)))


def test_each_replica_uses_its_own_source_and_learning_rate():
    spline = functions.get("spline", knots=8, init="gelu")
    first = {"mlp_all": {"function": spline.init(None)}}
    second = jax.tree.map(lambda v: -v, first)
    stacked = jax.tree.map(lambda *each: jnp.stack(each), first, second)
    replicas = make_replicas([5, 5, 5], [1e-3, 1e-3, 1e-2], sources=[0, 1, 0])
    together, _ = small.run(small.plan("frozen", stacked_arch=True), replicas, 5, arch=stacked)
    for r, (arch, rate) in enumerate([(first, 1e-3), (second, 1e-3), (first, 1e-2)]):
        alone, _ = small.run(small.plan("frozen"), make_replicas([5], rate), 5, arch=arch)
        assert difference(jax.tree.map(lambda x: x[r : r + 1], together.weights), alone.weights) < 1e-5  # noqa: B023
