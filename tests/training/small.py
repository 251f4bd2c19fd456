"""A search small enough to compile in a second: 6-bit parity, a 1-layer Transformer, one shared spline."""

import functools

import jax
import numpy as np

from ssa_jax import functions, models, tasks
from ssa_jax.training.mesh import make_mesh
from ssa_jax.training.optimizers import direction
from ssa_jax.training.schedules import schedule
from ssa_jax.training.state import make_replicas
from ssa_jax.training.step import Plan, init_state, make_step

TASK = tasks.get("parity", bits=6)


@functools.cache
def model(**options):
    # no biases: softmax ignores a bias of the keys, so that Adam would amplify the rounding of its zero gradient
    spline = functions.get("spline", knots=8, init="gelu")
    return models.get(
        "decoder",
        **dict(
            vocab_size=2,
            outputs=2,
            length=6,
            answers=1,
            layers=1,
            width=16,
            heads=2,
            hidden=16,
            bias=False,
            activation=spline,
        )
        | options,
    )


@functools.cache
def plan(mode="held_out", **changes):
    return Plan(
        **dict(
            mode=mode,
            batch_size=8,
            weights_direction=direction("adamw", weight_decay=0.1, clip=1.0),
            weights_schedule=schedule("cosine", 40, warmup=3),
            arch_direction=direction("adam", b1=0.99),
            arch_schedule=schedule("linear", 40),
            arch_rate=0.02,
        )
        | changes
    )


def replicas(count, **changes):
    return make_replicas(**dict(seeds=list(range(count)), learning_rate=3e-3, steps=40) | changes)


@functools.cache
def program(the_plan, steps, mapping, task, the_model, mesh):
    """A compiled call of `steps` steps; tests that run the same one share it."""
    step = make_step(the_model, task, the_plan, mesh, mapping)
    return jax.jit(lambda s, r: jax.lax.scan(lambda s, _: step(s, r), s, length=steps))


def run(the_plan, the_replicas, steps, mapping="vmap", devices=1, task=TASK, the_model=None, arch=None, mesh=None):
    """The state after `steps` steps and the metrics of each step, as numpy."""
    the_model = the_model or model()
    mesh = mesh or make_mesh(len(the_replicas.seed), devices=jax.devices()[:devices])
    state = init_state(the_model, task, the_plan, the_replicas, mesh, mapping, arch)()
    state, metrics = program(the_plan, steps, mapping, task, the_model, mesh)(state, the_replicas)
    return jax.tree.map(np.asarray, (state, metrics))
