"""Statistics: intervals, unreached thresholds, paired differences."""

import numpy as np
import pytest
import scipy.stats

from ssa_jax.evaluation import statistics


def test_interval_is_scipys_t_interval():
    values = np.random.default_rng(0).normal(0.9, 0.05, size=16)
    estimate = statistics.mean_ci95(values)
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate["mean"] == pytest.approx(values.mean())
    assert estimate["ci95"] == pytest.approx([expected.low, expected.high])
    assert "missing" not in estimate


@pytest.mark.parametrize("missing", [None, np.nan, np.inf])
def test_missing_values_are_counted_and_left_out(missing):
    estimate = statistics.mean_ci95([0.5, missing, 0.7])
    assert estimate["mean"] == pytest.approx(0.6)
    assert estimate["values"] == [0.5, None, 0.7]
    assert estimate["missing"] == 1


def test_no_interval_without_spread():
    assert statistics.mean_ci95([0.5]) == {"mean": 0.5, "ci95": [None, None], "values": [0.5]}
    assert statistics.mean_ci95([None])["mean"] is None
    assert statistics.mean_ci95([1, 1, 1])["ci95"] == [1.0, 1.0]


def test_steps_to_is_the_first_crossing_even_when_lost_again():
    accuracies = np.array([[0.2, 0.2, 1.0], [0.99, 0.98, np.nan], [0.5, np.nan, 0.1]])
    assert statistics.steps_to([10, 20, 30], accuracies, 0.99) == [20, None, 10]


def test_curves_must_match_their_steps():
    with pytest.raises(ValueError, match="2 steps"):
        statistics.steps_to([10, 20], np.zeros((3, 4)), 0.5)
    with pytest.raises(ValueError, match="2 steps"):
        statistics.area_under_curve([10, 20], np.zeros(2))


@pytest.mark.parametrize(
    ("values", "median"),
    [([3, 1, None], 3), ([1, 2, None, None], None), ([1, 2, 3, None], 2.5), ([None], None), ([], None)],
)
def test_median_counts_the_unreached_as_infinite(values, median):
    assert statistics.median_with_unreached(values) == median


def test_paired_difference_finds_what_seeds_share():
    random = np.random.default_rng(1)
    seeds = random.normal(size=16)
    result = statistics.paired_difference(seeds + 0.1 + 0.01 * random.normal(size=16), seeds)
    low, high = result["ci95"]
    assert 0.08 < low < result["mean"] < high < 0.12
    assert result["p"] < 0.001


def test_paired_difference_is_reproducible_and_antisymmetric():
    a, b = np.random.default_rng(2).normal(size=(2, 9))
    there, back = statistics.paired_difference(a, b), statistics.paired_difference(b, a)
    assert there == statistics.paired_difference(a, b)
    assert there["mean"] == -back["mean"]
    assert there["p"] == back["p"]


def test_equal_conditions_show_no_difference():
    assert statistics.paired_difference([0.5, 0.7, 0.9], [0.5, 0.7, 0.9]) == {"mean": 0.0, "ci95": [0.0, 0.0], "p": 1.0}


def test_pairs_with_a_missing_side_are_left_out():
    result = statistics.paired_difference([1.0, None, 3.0], [0.0, 1.0, np.nan])
    assert result == {"mean": 1.0, "ci95": [None, None], "p": None, "missing": 2}
    with pytest.raises(ValueError, match="same seeds"):
        statistics.paired_difference([1.0], [1.0, 2.0])


@pytest.mark.parametrize("count", [5, 10])
def test_paired_interval_covers_the_truth(count):
    random = np.random.default_rng(3)
    zeros = np.zeros(count)
    intervals = [statistics.paired_difference(random.normal(size=count), zeros)["ci95"] for _ in range(200)]
    assert np.mean([low <= 0 <= high for low, high in intervals]) >= 0.91


def test_p_is_uniform_where_nothing_differs():
    random = np.random.default_rng(4)
    zeros = np.zeros(10)
    significant = [statistics.paired_difference(random.normal(size=10), zeros)["p"] <= 0.05 for _ in range(300)]
    assert np.mean(significant) < 0.09


def test_interquartile_mean_ignores_a_diverged_seed():
    assert statistics.interquartile_mean([0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 100.0]) == pytest.approx(0.75)
    assert statistics.interquartile_mean([None]) is None


def test_area_is_the_mean_accuracy_over_the_steps():
    assert statistics.area_under_curve([0, 100, 400], np.array([[0.0], [1.0], [1.0]])) == [0.875]
    assert statistics.area_under_curve([5], np.array([[0.3, np.nan]])) == [0.3, None]
