import itertools

import numpy as np
import pytest

from ssa_jax import tasks
from ssa_jax.tasks.parentheses import opening_probability
from tests.tasks.rows import cases, rows


def balanced(string):
    stack = []
    for bracket in string:
        if bracket % 2 == 0:
            stack.append(bracket)
        elif not stack or stack.pop() != bracket - 1:
            return False
    return not stack


def depth(string):
    return max(itertools.accumulate(1 - 2 * (bracket % 2) for bracket in string))


@pytest.mark.parametrize(
    "types, split, pairs, depths",
    [
        (1, "train", (1, 16), (1, 6)),
        (3, "train", (1, 16), (1, 6)),
        (1, "test", (1, 16), (1, 6)),
        (1, "longer", (17, 32), (1, 6)),
        (1, "deeper", (7, 16), (7, 12)),
    ],
)
def test_labels_equal_a_stack(types, split, pairs, depths):
    lengths, labels = [], []
    for question, _, answer in cases(tasks.get("parentheses", types=types), split):
        *string, end = question
        assert end == 2 * types and max(string) < 2 * types
        assert answer == [int(balanced(string))]
        if answer == [1]:
            assert depths[0] <= depth(string) <= depths[1]
        lengths.append(len(string) / 2)
        labels.append(answer[0])
    assert set(lengths) <= set(range(pairs[0], pairs[1] + 1)) and max(lengths) == pairs[1]
    assert 0.4 < np.mean(labels) < 0.6


def test_near_misses_are_one_edit_away():
    kinds = {"swapped": 0, "turned": 0, "retyped": 0}
    for question, _, answer in cases(tasks.get("parentheses", types=2), "train"):
        string = question[:-1]
        if answer == [1]:
            continue
        others = [[*string[:i], new, *string[i + 1 :]] for i in range(len(string)) for new in range(4)]
        opening = sum(bracket % 2 == 0 for bracket in string)
        if 2 * opening != len(string):
            assert any(balanced(other) for other in others)
            kinds["turned"] += 1
        elif any(balanced(other) for other in others):
            kinds["retyped"] += 1
        else:
            pairs = itertools.combinations(range(len(string)), 2)
            assert any(balanced(exchanged(string, i, k)) for i, k in pairs)
            kinds["swapped"] += 1
    assert min(kinds.values()) > 100


def exchanged(string, i, k):
    string = list(string)
    string[i], string[k] = string[k], string[i]
    return string


def test_balanced_strings_are_uniform():
    task = tasks.get("parentheses", pairs=5, depth=3, mixture=(0, 0, 0, 0, 1), train_size=0)
    strings = [tuple(question) for question, _, answer in cases(task, "train", 8192) if answer == [1]]
    every = [s for s in itertools.product((0, 1), repeat=10) if balanced(s) and depth(s) <= 3]
    found = {string: strings.count(string) for string in set(strings)}
    assert {string[:-1] for string in found} <= set(every)
    assert len(every) == 34 and len(found) > 20
    expected = len(strings) / len(found)
    assert (
        sum((count - expected) ** 2 / expected for count in found.values()) < len(found) + 6 * (2 * len(found)) ** 0.5
    )


def test_opening_probabilities_count_the_strings():
    for steps, least, most in ((8, 0, 3), (10, 3, 4), (8, 4, 4)):
        opens = opening_probability(steps, least, most)
        words = [s for s in itertools.product((0, 1), repeat=steps) if balanced(s) and least <= depth(s) <= most]
        for word in words:
            probability, height, reached = 1.0, 0, int(least == 0)
            for place, bracket in enumerate(word):
                up = opens[steps - place, height, reached]
                probability *= 1 - up if bracket else up
                height += 1 - 2 * bracket
                reached = max(reached, int(height >= least))
            assert probability == pytest.approx(1 / len(words), rel=1e-5)


def test_a_row_is_shown_as_it_is_read():
    inputs = np.array([5, 5, 0, 2, 1, 3, 4])
    example = {"inputs": inputs, "targets": np.zeros(7, int), "mask": np.arange(7) == 6}
    assert tasks.get("parentheses", types=2).show(example) == "( [ ) ] ? -> 0"


def test_no_length_and_no_first_bracket_gives_the_label_away():
    batch = rows(tasks.get("parentheses"), "train", 8192)
    lengths, labels = (batch["inputs"] != 3).sum(-1), batch["targets"][:, -1]
    long = lengths > 20
    assert labels[long].mean() == pytest.approx(0.5, abs=0.03)
    for length in range(21, 34, 2):
        assert labels[lengths == length].mean() == pytest.approx(0.5, abs=0.12)
