import pytest

from ssa_jax import tasks
from tests.tasks.rows import cases, contents, rows


@pytest.mark.parametrize("split", ["train", "test"])
def test_answers_equal_a_count(split):
    for question, fed, answer in cases(tasks.get("parity"), split):
        assert len(question) == 10 and fed == []
        assert answer == [question.count(1) % 2]


def test_every_string_of_bits_occurs_once():
    task = tasks.get("parity", bits=6, train_fraction=0.5, validation_fraction=0.25, test_fraction=0.25)
    strings = [row for split in ("train", "validation", "test") for row in contents(task.examples(split))]
    assert len(strings) == len(set(strings)) == 64


def test_sizes_by_hand():
    assert tasks.get("parity").ranges == {
        "train": (0, 614),
        "weights": (0, 492),
        "architecture": (492, 614),
        "validation": (615, 717),
        "test": (717, 1024),
    }


def test_training_reaches_all_examples_and_only_its_own():
    task = tasks.get("parity")
    assert set(contents(rows(task, "train", 16384))) == set(contents(task.examples("train")))


@pytest.mark.parametrize("bits", [1, 21])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match=f"bits = {bits}"):
        tasks.get("parity", bits=bits)
