import numpy as np
import pytest

from ssa_jax import tasks
from tests.tasks.rows import cases, rows

WRITTEN = {"copy": list, "reverse": lambda read: read[::-1], "sort": sorted}
SYMBOLS = 16


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("split", ["train", "architecture", "test", "longer"])
def test_answers_equal_python_lists(name, split):
    task, lengths = tasks.get(name), set()
    for question, fed, answer in cases(task, split):
        *read, separator = question
        assert separator == SYMBOLS and max(read) < SYMBOLS
        assert answer == [*WRITTEN[name](read), SYMBOLS]
        assert fed == answer[:-1]
        lengths.add(len(read))
    assert lengths == set(task.levels(split))


@pytest.mark.parametrize("name, answer", [("copy", "b a d a ."), ("reverse", "a d a b ."), ("sort", "a a b d .")])
def test_a_string_by_hand(name, answer):
    task = tasks.get(name, symbols=4, **({"architecture_longest": 10} if name == "copy" else {}))
    words = np.array([1, 0, 3, 0, 2, 2, 2, 2, 2, 2, 2], np.uint32)
    drawn = task.sample(words, np.int32(4), "train")
    example = {
        "inputs": np.concatenate([drawn.question[:5], drawn.answer[:4]]),
        "targets": np.concatenate([np.zeros(4, int), drawn.answer[:5]]),
        "mask": np.arange(9) >= 4,
    }
    assert task.show(example) == f"b a d a ; -> {answer}"


def test_copy_searches_on_longer_strings_than_it_trains_on():
    task = tasks.get("copy")
    lengths = {split: rows(task, split)["mask"].sum(-1) - 1 for split in task.splits}
    assert {split: (found.min(), found.max()) for split, found in lengths.items()} == {
        "train": (2, 10),
        "weights": (2, 10),
        "architecture": (2, 15),
        "validation": (2, 10),
        "test": (2, 10),
        "longer": (11, 40),
    }


def test_architecture_shorter_than_training_is_refused():
    with pytest.raises(ValueError, match="architecture_longest = 9"):
        tasks.get("copy", architecture_longest=9)
