import numpy as np
import pytest

from ssa_jax import tasks
from tests.tasks.rows import cases

VALUES, MARKERS = 127, 30


@pytest.mark.parametrize(
    "split, pairs", [("train", range(1, 11)), ("test", range(1, 11)), ("more_pairs", range(11, 21))]
)
def test_answers_equal_a_dictionary(split, pairs):
    seen, places = set(), []
    for question, _, answer in cases(tasks.get("needle"), split):
        *haystack, query = question
        markers, values = haystack[::2], haystack[1::2]
        assert len(set(markers)) == len(markers) == len(values)
        assert all(VALUES <= marker < VALUES + MARKERS for marker in markers) and max(values) < VALUES
        assert answer == [dict(zip(markers, values, strict=True))[query - MARKERS]]
        seen.add(len(values))
        places.append((markers.index(query - MARKERS) + 0.5) / len(values))
    assert seen == set(pairs)
    assert np.mean(places) == pytest.approx(0.5, abs=0.04)


def test_a_haystack_by_hand():
    task = tasks.get("needle", pairs=2, more_pairs=3, markers=3, values=5)
    # markers in the order of their words: 2, 0, 1; values 4 and 3; the pair asked for is 1
    drawn = task.sample(np.array([20, 30, 10, 4, 8, 1], np.uint32), np.int32(2), "train")
    assert drawn.question.tolist() == [5 + 2, 4, 5 + 0, 3, 8 + 0]
    assert drawn.answer.tolist() == [3]


def test_a_row_is_shown_as_it_is_read():
    inputs = np.array([187, 187, 131, 17, 136, 3, 166])
    example = {"inputs": inputs, "targets": np.array([0] * 6 + [3]), "mask": np.arange(7) == 6}
    assert tasks.get("needle").show(example) == "m4 17 m9 3 q9 -> 3"


def test_more_pairs_than_markers_are_refused():
    with pytest.raises(ValueError, match="more_pairs = 31"):
        tasks.get("needle", more_pairs=31)
