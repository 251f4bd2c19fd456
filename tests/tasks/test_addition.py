import jax
import numpy as np
import pytest

from ssa_jax import tasks
from ssa_jax.tasks.addition import EQUALS, PLUS
from tests.tasks.rows import cases, rows


def number(digits):
    return sum(digit * 10**place for place, digit in enumerate(digits))


@pytest.mark.parametrize("split, digits", [("train", {3}), ("test", {3}), ("longer", {4, 5})])
def test_answers_equal_integer_addition(split, digits):
    seen = set()
    for question, fed, answer in cases(tasks.get("addition"), split):
        n = question.index(PLUS)
        a, b = question[:n], question[n + 1 : -1]
        assert question[-1] == EQUALS and len(b) == n and len(answer) == n + 1
        assert number(a) + number(b) == number(answer)
        assert fed == answer[:-1]
        seen.add(n)
    assert seen == digits


def test_a_sum_by_hand():
    words = np.array([7, 2, 0, 5, 9, 0], np.uint32)
    drawn = tasks.get("addition", digits=2).sample(words, np.int32(2), "train")
    assert drawn.question.tolist() == [7, 2, PLUS, 5, 9, EQUALS]
    assert drawn.answer.tolist() == [2, 2, 1]


def test_a_row_is_shown_as_it_is_read():
    task = tasks.get("addition", digits=2)
    inputs, targets = [7, 2, PLUS, 5, 9, EQUALS, 2, 2], [0, 0, 0, 0, 0, 2, 2, 1]
    example = {"inputs": np.array(inputs), "targets": np.array(targets), "mask": np.arange(8) >= 5}
    assert task.show(example) == "7 2 + 5 9 = -> 2 2 1"


def test_mixed_lengths_follow_the_mixture():
    task = tasks.get("addition", mixed=True, mixture=(0, 1, 3))
    batch = rows(task, "train", 8192)
    lengths = batch["mask"].sum(-1) - 1
    counts = np.bincount(lengths, minlength=4) / 8192
    assert counts[:2].sum() == 0
    assert counts[2] == pytest.approx(0.25, abs=0.025)
    padded = batch["inputs"][lengths == 2]
    assert (padded[:, :3] == task.pad).all() and not (padded[:, 3:] == task.pad).any()


def test_digits_are_uniform():
    inputs = rows(tasks.get("addition"), "train", 8192)["inputs"][:, [0, 1, 2, 4, 5, 6]]
    frequency = np.bincount(inputs.ravel(), minlength=10) / inputs.size
    np.testing.assert_allclose(frequency, 0.1, atol=0.008)


def test_a_space_too_small_for_its_test_set_is_refused():
    task = tasks.get("addition", digits=1)
    with pytest.raises(ValueError, match="different examples for split 'test'"):
        task.examples("test")
    few = tasks.get("addition", digits=1, test_size=3, validation_size=3)
    assert few.examples("test")["inputs"].shape == (3, 5)
    assert jax.jit(lambda key: few.batch(key, "train", 64))(jax.random.key(0))["mask"][:, -2:].all()


def test_a_finite_set_can_first_be_needed_inside_jit_and_vmap():
    task = tasks.get("addition", digits=2, train_size=40, test_size=11)
    keys = jax.random.split(jax.random.key(0), 3)
    batch = jax.jit(jax.vmap(lambda key: task.batch(key, "train", 8)))(keys)
    np.testing.assert_array_equal(batch["inputs"][1], task.batch(keys[1], "train", 8)["inputs"])
