import numpy as np
import pytest

from ssa_jax import tasks
from tests.tasks.rows import cases, rows

NAMES = {23: "+", 24: "-", 25: "*"}
BEGIN, ANSWER = 26, 27


def evaluate(tokens):
    """The value of a prefix expression and how many of its tokens were read."""
    if tokens[0] < 23:
        return tokens[0], 1
    left, used = evaluate(tokens[1:])
    right, more = evaluate(tokens[1 + used :])
    value = {"+": left + right, "-": left - right, "*": left * right}[NAMES[tokens[0]]]
    return value, 1 + used + more


@pytest.mark.parametrize("split, operators", [("train", set(range(1, 11))), ("test", {10}), ("validation", {10})])
def test_answers_equal_a_recursive_evaluation(split, operators):
    seen = set()
    for question, _, answer in cases(tasks.get("mano"), split):
        begin, length, *expression, marker = question
        value, used = evaluate(expression)
        count = sum(token in NAMES for token in expression)
        assert (begin, marker) == (BEGIN, ANSWER) and used == len(expression) == 2 * count + 1
        assert length == ANSWER + count
        assert answer == [value % 23]
        seen.add(count)
    assert seen == operators


@pytest.mark.parametrize(
    "expression, operators, value",
    [([25, 23, 5, 20, 3], 2, 6), ([24, 4, 9], 1, 18), ([24, 23, 0, 23, 19, 8, 24, 21, 2], 4, 8)],
)
def test_expressions_by_hand(expression, operators, value):
    padded = np.array(expression + [0] * (21 - len(expression)))
    assert tasks.get("mano")._value(padded, operators) == value


def test_operands_operators_and_shapes_are_uniform():
    task = tasks.get("mano", operators=3)
    inputs = rows(task, "train", 8192)["inputs"]
    tokens = np.bincount(inputs.ravel(), minlength=32)
    np.testing.assert_allclose(tokens[:23] / tokens[:23].sum(), 1 / 23, atol=0.004)
    np.testing.assert_allclose(tokens[23:26] / tokens[23:26].sum(), 1 / 3, atol=0.012)
    levels = inputs[np.arange(len(inputs)), (inputs == BEGIN).argmax(-1) + 1] - ANSWER
    np.testing.assert_allclose(np.bincount(levels)[1:] / len(levels), 1 / 3, atol=0.03)
    three = inputs[levels == 3][:, 2:9] >= 23
    left = [sides(row.tolist()) for row in three]
    np.testing.assert_allclose(np.bincount(left) / len(left), 1 / 3, atol=0.04)


def sides(operator):
    """How many operators stand on the root's left side."""
    open_subtrees, count = 1, 0
    for inner in operator[1:]:
        open_subtrees += 1 if inner else -1
        count += inner
        if not open_subtrees:
            return count


def test_a_row_is_shown_as_it_is_read():
    task = tasks.get("mano", operators=2)
    inputs = np.array([BEGIN, ANSWER + 2, 25, 23, 5, 20, 3, ANSWER])
    example = {"inputs": inputs, "targets": np.array([0] * 7 + [6]), "mask": np.arange(8) == 7}
    assert task.show(example) == "begin 2 * + 5 20 3 answer -> 6"
