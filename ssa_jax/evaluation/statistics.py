"""Statistics over seeds: a number never stands without its spread, and a missing value is counted, not hidden.

A value that is None, NaN or infinite is missing (a threshold that was not reached, a replica that diverged).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Float, Shaped

RESAMPLES = 10_000
SEED = 0

Values = Sequence[float | None] | Shaped[np.ndarray, " R"]


def _numbers(values: Values) -> Float[np.ndarray, " R"]:
    """The values as float64, NaN where one is missing."""
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _present(values: Values) -> Float[np.ndarray, " N"]:
    numbers = _numbers(values)
    return numbers[~np.isnan(numbers)]


def mean_ci95(values: Values) -> dict[str, Any]:
    """Mean over seeds with its 95 % Student t interval: mean ± t(.975, R - 1) s / sqrt(R).

    Missing values stay in `values` as None, are left out of the mean, and are counted as `missing` when there
    are any. One value has no spread: its interval is [None, None]; no value has no mean either.

    >>> estimate = mean_ci95([0.8, 0.9, 1.0, None])
    >>> round(estimate["mean"], 2), [round(x, 2) for x in estimate["ci95"]], estimate["missing"]
    (0.9, [0.65, 1.15], 1)
    >>> mean_ci95([0.5])
    {'mean': 0.5, 'ci95': [None, None], 'values': [0.5]}
    """
    numbers, present = _numbers(values), _present(values)
    mean, low, high = None, None, None
    if present.size:
        mean = float(present.mean())
    if present.size > 1:
        half = scipy.stats.t.ppf(0.975, present.size - 1) * present.std(ddof=1) / np.sqrt(present.size)
        low, high = float(mean - half), float(mean + half)
    estimate = {"mean": mean, "ci95": [low, high], "values": [None if np.isnan(x) else float(x) for x in numbers]}
    missing = numbers.size - present.size
    return estimate | ({"missing": missing} if missing else {})


def steps_to(
    steps: Sequence[int] | Shaped[np.ndarray, " N"], accuracies: Float[np.ndarray, "N R"], threshold: float
) -> list[int | None]:
    """For each replica the first evaluated step with accuracy >= threshold; None when there is none.

    >>> steps_to([25, 50, 75], np.array([[0.5, 0.4], [0.99, 0.5], [0.98, np.nan]]), threshold=0.99)
    [50, None]
    """
    steps = np.asarray(steps)
    reached = np.asarray(accuracies, np.float64) >= threshold  # NaN compares as not reached
    if reached.ndim != 2 or len(reached) != len(steps):
        raise ValueError(f"accuracies must be [steps, replicas] with {len(steps)} steps, not {reached.shape}.")
    return [int(steps[column.argmax()]) if column.any() else None for column in reached.T]


def median_with_unreached(values: Values) -> float | None:
    """The median with a missing value counted as +infinity; None when the median itself is not reached.

    >>> median_with_unreached([50, 75, None]), median_with_unreached([50, None])
    (75.0, None)
    """
    numbers = _numbers(values)
    if not numbers.size:
        return None
    median = float(np.median(np.where(np.isnan(numbers), np.inf, numbers)))
    return median if np.isfinite(median) else None


def paired_difference(a: Values, b: Values) -> dict[str, Any]:
    """The mean of a - b over seeds that both have, with a bootstrap interval and an exact p-value.

    `ci95` resamples the differences (10,000 times, fixed seed) and takes the percentiles that Hesterberg's
    expansion gives, Phi(-sqrt(R / (R - 1)) t(.975, R - 1)): plain percentiles are too narrow for few seeds.
    `p` is two-sided, from flipping the signs of the differences (all 2^R flips up to R = 12, else 10,000 at
    random), so that R seeds cannot claim less than 2 / 2^R: it takes 6 to reach .05. Pairs with a missing side
    are left out and counted as `missing`. Fewer than two pairs: no interval and no p.
    Raises ValueError when a and b have different lengths.
    Source: Hesterberg 2015, "What Teachers Should Know About the Bootstrap" (the interval).

    >>> result = paired_difference([0.9, 0.8, 0.95, 0.9, 0.9], [0.5, 0.5, 0.6, 0.4, 0.55])
    >>> round(result["mean"], 3), [round(x, 2) for x in result["ci95"]], result["p"]
    (0.38, [0.31, 0.48], 0.0625)
    """
    a, b = _numbers(a), _numbers(b)
    if a.shape != b.shape:
        raise ValueError(f"A paired difference needs the same seeds on both sides, not {a.size} and {b.size}.")
    differences = _present(a - b)
    R, missing = differences.size, a.size - differences.size
    result = {"mean": float(differences.mean()) if R else None, "ci95": [None, None], "p": None}
    if R > 1:
        random = np.random.default_rng(SEED)
        means = differences[random.integers(R, size=(RESAMPLES, R))].mean(axis=1)
        tail = scipy.stats.norm.cdf(-np.sqrt(R / (R - 1)) * scipy.stats.t.ppf(0.975, R - 1))
        result["ci95"] = [float(x) for x in np.quantile(means, [tail, 1 - tail])]
        result["p"] = _sign_flip_p(differences, random)
    return result | ({"missing": missing} if missing else {})


def _sign_flip_p(differences: Float[np.ndarray, " R"], random: np.random.Generator) -> float:
    """How often flipped signs give a mean at least as far from 0 as the observed one."""
    R = differences.size
    exact = R <= 12
    bits = np.arange(2**R)[:, None] >> np.arange(R) & 1 if exact else random.integers(2, size=(RESAMPLES, R))
    flipped, observed = np.abs((1 - 2 * bits) @ differences), abs(differences.sum())
    extreme = int((flipped >= observed - 1e-9 * np.abs(differences).sum()).sum())  # sums differ in their last digit
    return extreme / len(bits) if exact else (extreme + 1) / (len(bits) + 1)


def interquartile_mean(values: Values) -> float | None:
    """The mean of the middle half: a quarter of the seeds (rounded down) is cut at each end.

    Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".

    >>> interquartile_mean([0.0, 0.8, 1.0, 1.0])
    0.9
    """
    present = _present(values)
    return float(scipy.stats.trim_mean(present, 0.25)) if present.size else None


def area_under_curve(
    steps: Sequence[int] | Shaped[np.ndarray, " N"], accuracies: Float[np.ndarray, "N R"]
) -> list[float | None]:
    """For each replica the accuracy averaged over the steps (trapezoid rule), in the unit of the accuracy.

    A replica with a missing accuracy has no area: None.

    >>> area_under_curve([0, 10, 20], np.array([[0.0, 1.0], [1.0, 1.0], [1.0, np.nan]]))
    [0.75, None]
    """
    steps, accuracies = np.asarray(steps, np.float64), np.asarray(accuracies, np.float64)
    if accuracies.ndim != 2 or len(accuracies) != len(steps) or not len(steps):
        raise ValueError(f"accuracies must be [steps, replicas] with {len(steps)} steps, not {accuracies.shape}.")
    areas = accuracies[0] if len(steps) == 1 else np.trapezoid(accuracies, steps, axis=0) / (steps[-1] - steps[0])
    return [float(area) if np.isfinite(area) else None for area in areas]
