"""Benchmarks: rivals compute the same thing, tables hold what was measured, the document keeps other sections.

No test asserts a time. What needs torch is skipped where it is not installed.
"""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax.bench import attention, memory, results, spline, timing, torch_rivals, torch_training, train
from ssa_jax.experiments import build
from ssa_jax.functions import Spline
from ssa_jax.report.table import Table
from ssa_jax.training.objective import gradient

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
SIZE = attention.Size(48, batch=2, heads=2, width=8, rounds=1, most=1)
PART = results.Part("Shapes", Table(("rival", "ms"), (("ours", "1.0"),)), ("One round.",))


def close(found, expected, tolerance=1e-4):
    """Equal up to a fraction of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_compare_counts_work_by_units_and_ratios_by_the_baseline():
    timed = timing.compare({"one": lambda: None, "same work, ten units": lambda: None}, "one", 3, 1, {"one": 1})
    assert timed["one"].ratio == timed["one"].low == timed["one"].high == 1
    assert timed["one"].rounds == 3
    slow = timing.Timed(2.0, 4.0, 2.0, 8.0, 3).inverse()
    assert (slow.seconds, slow.ratio, slow.low, slow.high) == (2.0, 0.25, 0.125, 0.5)


def test_publishing_again_replaces_its_own_section_only(tmp_path):
    path = tmp_path / "docs" / "performance.md"
    for heading in ("Attention", "Splines", "Attention"):
        results.publish(path, heading, [PART])
    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Attention", "## Splines"]
    assert text.count("| ours | 1.0 |") == 2
    assert "jax " in text and "commit " in text and "cores" in text


def test_quick_writes_nothing_unless_told_where(tmp_path):
    assert results.arguments("", ["--quick"]).results is None
    assert results.arguments("", []).results == results.DOCUMENT
    assert results.arguments("", ["--quick", "--results", str(tmp_path)]).results == tmp_path


@pytest.mark.parametrize("name", attention.JAX)
def test_jax_attention_rivals_agree(name):
    rival = "dense ssa" if attention.JAX[name][1] else "materialised jax softmax"
    (_, both), (forward, expected) = attention.jax_calls(name, SIZE), attention.jax_calls(rival, SIZE)
    jax.tree.map(close, both(), expected())
    close(forward(), expected()[0])


@needs_torch
@pytest.mark.parametrize("name", [name for name in attention.TORCH if "Flex" not in name])
def test_torch_attention_rivals_agree_with_ours(name):
    rival = "dense ssa" if attention.TORCH[name][1] else "materialised jax softmax"
    out, gradients = attention.torch_calls(name, SIZE)[1]()
    expected, (*by_inputs, by_params) = attention.jax_calls(rival, SIZE)[1]()
    for found, wanted in zip((out, *gradients[:3]), (expected, *by_inputs), strict=True):
        close(found.numpy().swapaxes(1, 2), wanted)
    for found, wanted in zip(gradients[3:], by_params.values(), strict=True):
        close(found.numpy(), wanted)


def test_attention_tables_have_a_row_a_rival():
    nothing = dict.fromkeys(attention.TORCH, "not wanted here")
    part = attention.times(SIZE, (nothing, nothing))
    assert [row[0] for row in part.table.rows] == list(attention.JAX)
    assert "not wanted here" in part.markdown()
    assert len(attention.simplex_times(4, 8, 1, most=1).table.rows) >= 4


def test_temporaries_grow_with_length(monkeypatch):
    monkeypatch.setattr(attention, "JAX", {name: attention.JAX[name] for name in (attention.OURS, "dense ssa")})
    rows = attention.temporaries(256, 512, heads=2, width=8).table.rows
    growth = {name: float(grown) for name, *_, grown in rows}
    assert growth["dense ssa"] > 3
    assert growth[attention.OURS] < 3


@pytest.mark.skipif(not memory._STATUS.exists(), reason="needs /proc")
def test_a_process_peak_is_its_own():
    before, more = memory.process_peak(np.ones, 8, 2**22)
    assert 20 < more < 200
    assert before > 0


@pytest.mark.parametrize("name", ["64 knots, two gathers, autodiff", "64 knots, jnp.interp, autodiff"])
def test_naive_splines_agree_with_ours(name):
    x, cotangent = np.random.default_rng(0).uniform(-5, 5, (2, 4, 6, 8)).astype(np.float32)
    made = spline.forms(channels=8)
    found, expected = (spline.jax_calls(*made[form], x, cotangent) for form in (name, "spline, 64 knots"))
    jax.tree.map(close, found["+ dx + dknots"](), expected["+ dx + dknots"]())


@needs_torch
def test_torch_spline_agrees_with_ours():
    x, cotangent = np.random.default_rng(0).uniform(-5, 5, (2, 4, 6, 8)).astype(np.float32)
    out, (by_x, by_values) = spline.torch_calls(x, cotangent)["torch, 64 knots, bucketize"]["+ dx + dknots"]()
    ours = Spline(knots=64)
    expected, pullback = jax.vjp(ours.apply, ours.init(jax.random.key(0)), x)
    by_params, by_inputs = pullback(jnp.asarray(cotangent))
    close(out, expected)
    close(by_values, by_params["values"])
    close(by_x, by_inputs)


def test_every_function_gets_its_step():
    calls = spline.step_calls(spline.Step(1, 8, 16, 2, 6, 2, steps=2), knots=(4,))
    assert {name: int(call()) for name, call in calls.items()} == dict.fromkeys(calls, 2)
    assert len(calls) == 3


def small_search():
    config = train.CONFIGS["parity, L 1, D 32"]()
    config.task.bits = 6
    config.model.update(dict(width=8, hidden=8, heads=2))
    config.stage1.update(dict(replicas=2, batch_size=4))
    return config


def test_a_step_is_compared_with_our_best_mapping(monkeypatch):
    ours = {"ours, map": lambda: jnp.linalg.svd(jnp.ones((300, 300))), "ours, vmap": lambda: None}
    monkeypatch.setattr(train, "our_calls", lambda config, steps: ours)
    monkeypatch.setattr(torch_rivals, "why_not", lambda: "not wanted here")
    part = train.step_times("small", small_search(), steps=2, rounds=1, most=1)
    assert part.table.header[-1] == "ours, vmap / it"
    assert [row[0] for row in part.table.rows] == list(ours)
    assert "not wanted here" in part.markdown()


@pytest.mark.slow
def test_every_mapping_makes_the_steps():
    calls = train.our_calls(small_search(), 2)
    assert {name: int(call()) for name, call in calls.items()} == dict.fromkeys(calls, 2)
    assert len(calls) == 3


@needs_torch
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("name", train.CONFIGS)
def test_torch_trains_the_same_model(name, everywhere):
    import torch

    config = train.CONFIGS[name]()
    task, parts = build.task_of(config), build.functions_of(config)
    model, batch = build.model_of(config, task, parts), task.batch(jax.random.key(0), "weights", 8)
    variables = jax.jit(model.init)(jax.random.key(0), batch)
    values = np.random.default_rng(0).standard_normal(parts.mlp.knots).astype(np.float32)
    arch = jax.tree.map(lambda _: jnp.asarray(values), variables["arch"])
    (by_weights, by_arch), sums = jax.jit(gradient(model, (0, 1)))(variables["params"], arch, batch)

    weights, values = torch_training.from_flax(variables["params"]), torch_rivals.tensor(values, grad=True)
    inputs, targets, mask = (torch_rivals.tensor(batch[part]) for part in ("inputs", "targets", "mask"))
    sizes = dict(layers=config.model.layers, heads=config.model.heads, answers=None if everywhere else task.answers)
    scores = torch_training.logits(weights, values, inputs, torch_rivals.tensor(parts.mlp.grid()), **sizes)
    loss = torch_training.loss(scores[:, -task.answers :], targets.long(), mask)
    close(loss.item(), sums.loss / sums.tokens)
    by_values, *found = torch.autograd.grad(loss, [values, *weights.values()])
    close(by_values, jax.tree.leaves(by_arch)[0])
    expected = torch_training.from_flax(by_weights).values()
    flat = [torch.cat([x.detach().flatten() for x in tensors]) for tensors in (found, expected)]
    close(*flat)


@needs_torch
def test_the_torch_loop_moves_every_model_and_the_knots():
    config = small_search()
    calls = train.torch_calls(config, 1)
    for call in calls.values():
        call()
    assert len(calls) == 3


def test_quick_attention_runs_one_rival_by_name():
    out, gradients = attention.run_once(attention.OURS, 2, 8, 16)
    assert out.shape == (1, 16, 2, 8) and len(gradients) == 4


def test_processor_has_a_name():
    assert results.processor()
    assert all(results.conditions().splitlines())
