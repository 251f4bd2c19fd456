"""The train step of both stages: weights learn from one split, the architecture they share from another."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from ssa_jax.registry import no_such
from ssa_jax.training.mesh import locally, over_replicas, per_device, shared_sharding, split_batch, weights_sharding
from ssa_jax.training.objective import Sums, gradient
from ssa_jax.training.optimizers import descend
from ssa_jax.training.state import DATA, INIT, Replicas, State, births, stream

MODES = ("held_out", "joint", "frozen")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a stage does. `held_out`: weights learn from the split `weights`, the architecture from `architecture`;
    `joint`: both from the same batch of `train`; `frozen`: weights from `train`, the architecture stays.
    """

    mode: str
    batch_size: int
    weights_direction: optax.GradientTransformation
    weights_schedule: Callable
    arch_direction: optax.GradientTransformation | None = None
    arch_schedule: Callable | None = None
    arch_rate: float = 0.0
    smoothness: float = 0.0
    restart_every: int = 0
    accumulate: int = 1
    shared_seed: int = 0
    stacked_arch: bool = False

    def __post_init__(self):
        if self.mode not in MODES:
            raise no_such("mode", self.mode, MODES)
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size {self.batch_size} is not a multiple of accumulate {self.accumulate}.")


class Metrics(NamedTuple):
    """Of one step, per replica: the sums of its batch, whether it has started, and whether all was finite."""

    sums: Sums
    active: Bool[Array, "R"]
    finite: Bool[Array, "R"]


def init_state(
    model: Any, task: Any, plan: Plan, replicas: Replicas, mesh: Mesh, mapping: str, arch: Any
) -> Callable[[], State]:
    """What makes fresh weights for every replica, already on the mesh; `jax.eval_shape` of it costs nothing.

    `arch` None takes the model's initial functions.
    """
    example = example_batch(task)

    def build() -> State:
        fresh = _initializer(model, example, plan)
        weights, moments = over_replicas(fresh, mapping, mesh)((), replicas.seed, jnp.zeros_like(replicas.seed))
        start = model.init(jax.random.key(0), example)["arch"] if arch is None else arch
        arch_moments = plan.arch_direction.init(start) if plan.arch_direction else ()
        return State(jnp.zeros((), jnp.int32), weights, moments, start, arch_moments)

    return jax.jit(build, out_shardings=state_shardings(jax.eval_shape(build), mesh))


def abstract_state(fresh: Callable[[], State], mesh: Mesh) -> State:
    """Shapes, dtypes and shardings of what `fresh` makes, without making it."""
    shapes = jax.eval_shape(fresh)
    place = lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return jax.tree.map(place, shapes, state_shardings(shapes, mesh))


def state_shardings(state: State, mesh: Mesh) -> State:
    """The sharding of every leaf of a state."""
    shared = lambda tree: jax.tree.map(lambda _: shared_sharding(mesh), tree)
    per_replica = lambda tree: jax.tree.map(lambda leaf: weights_sharding(mesh, leaf), tree)
    return State(
        shared(state.step),
        per_replica(state.weights),
        per_replica(state.weights_moments),
        shared(state.arch),
        shared(state.arch_moments),
    )


def example_batch(task: Any) -> dict[str, Array]:
    """A batch of one, of zeros: its shapes are what a model needs to start."""
    shapes = jax.eval_shape(lambda: task.batch(jax.random.key(0), "train", 1))
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _initializer(model: Any, example: Any, plan: Plan) -> Callable:
    def fresh(_: Any, seed: Int[Array, ""], birth: Int[Array, ""]) -> tuple[Any, Any]:
        weights = model.init(stream(seed, INIT, birth), example)["params"]
        return weights, plan.weights_direction.init(weights)

    return fresh


def make_step(
    model: Any, task: Any, plan: Plan, mesh: Mesh, mapping: str, roughness: Callable | None = None
) -> Callable[[State, Replicas], tuple[State, Metrics]]:
    """The pure step (state, replicas) -> (state, metrics) of Teney et al. 2026, stage 1 or stage 2.

    Both gradients are first order and taken at the same state; both updates are made in the same step. The
    architecture's gradient is the mean over the replicas that have started and are finite, plus `smoothness` times
    the gradient of `roughness(arch)`.
    """
    weights_gradient = gradient(model, 0, plan.accumulate)
    arch_gradient = gradient(model, 1, plan.accumulate)
    both_gradients = gradient(model, (0, 1), plan.accumulate)
    weights_split = "weights" if plan.mode == "held_out" else "train"
    fresh = _initializer(model, example_batch(task), plan)

    def restart(_: Any, weights: Any, moments: Any, seed: Any, due: Bool[Array, "R"], born: Int[Array, "R"]) -> Any:
        def redo(old: Any) -> Any:
            new = locally(fresh, mapping, mesh)((), seed, born)
            return jax.tree.map(lambda n, o: jnp.where(due.reshape(-1, *[1] * (o.ndim - 1)), n, o), new, old)

        return jax.lax.cond(due.any(), redo, lambda old: old, (weights, moments))

    def train_step(state: State, replicas: Replicas) -> tuple[State, Metrics]:
        born = births(replicas, state.step, plan.restart_every)
        weights, moments = state.weights, state.weights_moments
        if plan.restart_every:
            due = (born == state.step) & (state.step > 0)
            weights, moments = per_device(restart, mesh)((), weights, moments, replicas.seed, due, born)
        held_out = ()
        if plan.mode == "held_out":
            held_out = task.batch(stream(plan.shared_seed, DATA, state.step), "architecture", plan.batch_size)

        def replica_step(shared: Any, weights: Any, moments: Any, replica: Replicas, born: Int[Array, ""]) -> Any:
            arch, held_out, step = shared
            arch = jax.tree.map(lambda a: a[replica.source], arch) if plan.stacked_arch else arch
            batch = task.batch(stream(replica.seed, DATA, step), weights_split, plan.batch_size)
            batch = split_batch(batch, mesh)
            if plan.mode == "joint":
                (to_weights, to_arch), sums = both_gradients(weights, arch, batch)
            else:
                to_weights, sums = weights_gradient(weights, arch, batch)
            if plan.mode == "held_out":
                to_arch, _ = arch_gradient(weights, arch, split_batch(held_out, mesh))
            ahead, moments_ahead = plan.weights_direction.update(to_weights, moments, weights)
            age = step - born
            rate = replica.learning_rate * plan.weights_schedule(jnp.maximum(age, 0))
            moved = descend(weights, ahead, rate)
            if plan.mode != "frozen":  # a frozen stage starts all at once
                moved, moments_ahead = jax.tree.map(
                    lambda new, old: jnp.where(age >= 0, new, old), (moved, moments_ahead), (weights, moments)
                )
            vector = ravel_pytree(to_arch)[0] if plan.mode != "frozen" else jnp.zeros(0)
            finite = jnp.isfinite(sums.loss) & jnp.isfinite(vector).all()
            vote = (age >= 0) & finite
            vector = jnp.append(jnp.where(vote, vector, 0.0), vote)  # one vector, so that one all-reduce serves all
            return moved, moments_ahead, vector, Metrics(sums, age >= 0, finite)

        shared = (state.arch, held_out, state.step)
        weights, moments, votes, metrics = over_replicas(replica_step, mapping, mesh)(
            shared, weights, moments, replicas, born
        )
        arch, arch_moments = state.arch, state.arch_moments
        if plan.mode != "frozen":
            arch, arch_moments = learn_arch(arch, arch_moments, votes.sum(axis=0), state.step)
        return State(state.step + 1, weights, moments, arch, arch_moments), metrics

    def learn_arch(arch: Any, moments: Any, total: Float[Array, "N"], step: Int[Array, ""]) -> tuple[Any, Any]:
        mean = ravel_pytree(arch)[1](total[:-1] / jnp.maximum(total[-1], 1.0))
        if plan.smoothness and roughness is not None:
            mean = jax.tree.map(lambda g, r: g + plan.smoothness * r, mean, jax.grad(roughness)(arch))
        ahead, moments = plan.arch_direction.update(mean, moments, arch)
        return descend(arch, ahead, plan.arch_rate * plan.arch_schedule(step)), moments

    return train_step


def make_chunk(step: Callable, steps: int, mesh: Mesh) -> Callable:
    """`steps` steps in one dispatch: (state, replicas) -> (state, {per-replica numbers of the chunk}).

    loss and accuracy are means over the chunk's target tokens (nan before a replica's start); `failed_at` is the
    first step of the chunk that was not finite, -1 when there was none.
    """

    def chunk(state: State, replicas: Replicas) -> tuple[State, dict[str, Array]]:
        first = state.step
        state, metrics = jax.lax.scan(lambda s, _: step(s, replicas), state, length=steps)
        sums = jax.tree.map(lambda x: jnp.where(metrics.active, x, 0.0).sum(axis=0), metrics.sums)
        bad = metrics.active & ~metrics.finite
        failed_at = jnp.where(bad.any(axis=0), first + jnp.argmax(bad, axis=0), -1)
        tokens = sums.tokens
        return state, {"loss": sums.loss / tokens, "accuracy": sums.correct / tokens, "failed_at": failed_at}

    # numbers go to every host, so that each can read all of them
    shardings = dict(in_shardings=(None, shared_sharding(mesh)), out_shardings=(None, shared_sharding(mesh)))
    return jax.jit(chunk, donate_argnums=0, **shardings)


def step_flops(model: Any, task: Any, plan: Plan) -> float:
    """FLOPs of one replica's step, counted by XLA on the unoptimised program of its gradients and update.

    XLA counts the body of a loop once, so that blockwise attention is undercounted.
    """
    batch = jax.eval_shape(lambda: task.batch(jax.random.key(0), "train", plan.batch_size))
    variables = jax.eval_shape(lambda b: model.init(jax.random.key(0), b), batch)

    def work(weights: Any, arch: Any, batch: Any) -> Any:
        moments = plan.weights_direction.init(weights)
        argnums = (0, 1) if plan.mode == "joint" else 0
        to_weights, _ = gradient(model, argnums)(weights, arch, batch)
        to_weights, to_arch = to_weights if plan.mode == "joint" else (to_weights, None)
        if plan.mode == "held_out":
            to_arch, _ = gradient(model, 1)(weights, arch, batch)
        return plan.weights_direction.update(to_weights, moments, weights), to_arch

    analysis = jax.jit(work).lower(variables["params"], variables["arch"], batch).cost_analysis()
    return float((analysis or {}).get("flops", float("nan")))
