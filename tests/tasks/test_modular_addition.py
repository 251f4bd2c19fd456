import operator

import pytest

from ssa_jax import tasks
from tests.tasks.rows import cases, contents


@pytest.mark.parametrize("equals", [False, True])
@pytest.mark.parametrize("name", ["add", "multiply"])
def test_answers_equal_python_integers(name, equals):
    calculate = {"add": operator.add, "multiply": operator.mul}[name]
    task = tasks.get("modular_addition", operation=name, equals=equals)
    for question, fed, answer in cases(task, "train"):
        a, b = question[:2]
        assert question[2:] == [53] * equals and fed == []
        assert answer == [calculate(a, b) % 53]


def test_every_pair_occurs_once():
    task = tasks.get("modular_addition", p=20, train_fraction=0.5, validation_fraction=0.25, test_fraction=0.25)
    pairs = [row for split in ("train", "validation", "test") for row in contents(task.examples(split))]
    assert len(pairs) == len(set(pairs)) == 400


def test_shapes_for_the_mlp_and_for_the_transformer():
    mlp, transformer = tasks.get("modular_addition", p=7), tasks.get("modular_addition", p=7, equals=True)
    assert (mlp.length, mlp.vocab_size, mlp.outputs) == (2, 7, 7)
    assert (transformer.length, transformer.vocab_size, transformer.outputs) == (3, 8, 7)


def test_values_out_of_range_are_refused():
    with pytest.raises(ValueError, match="p = 2"):
        tasks.get("modular_addition", p=2)
    with pytest.raises(ValueError, match="Did you mean 'multiply'"):
        tasks.get("modular_addition", operation="multipy")
