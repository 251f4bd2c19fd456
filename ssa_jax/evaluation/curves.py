"""What a learned curve looks like, in numbers: its dominant period and how well a sinusoid fits it."""

from typing import Any

import numpy as np
from jaxtyping import Float


def sinusoid_fit(
    x: Float[np.ndarray, "K"], y: Float[np.ndarray, "K"], weight: Float[np.ndarray, "K"] | None = None
) -> dict[str, float]:
    """Least-squares a + c sin(w x) + d cos(w x): {'period', 'r2'}, r2 the explained share of the weighted variance.

    Periods from 4 knots' distance to twice the range are searched on a grid of 400 frequencies.

    >>> x = np.linspace(-4, 4, 33)
    >>> fit = sinusoid_fit(x, 2 * np.sin(2 * np.pi * x / 3 + 1) + 5)
    >>> round(fit["period"], 1), round(fit["r2"], 3)
    (3.0, 1.0)
    """
    root = np.sqrt(np.ones_like(x) if weight is None else weight / weight.mean())
    mean = np.average(y, weights=root**2)
    total = np.sum((root * (y - mean)) ** 2)
    if total <= 1e-12 * max(np.sum((root * y) ** 2), 1e-30):
        return {"period": float("nan"), "r2": float("nan")}
    span, gap = x[-1] - x[0], x[1] - x[0]
    best = (-np.inf, float("nan"))
    for frequency in np.linspace(1 / (2 * span), 1 / (4 * gap), 400):
        angle = 2 * np.pi * frequency * x
        basis = root[:, None] * np.stack([np.ones_like(x), np.sin(angle), np.cos(angle)], axis=1)
        rest = root * y - basis @ np.linalg.lstsq(basis, root * y, rcond=None)[0]
        best = max(best, (1 - np.sum(rest**2) / total, 1 / frequency))
    return {"period": float(best[1]), "r2": float(best[0])}


def describe(function: Any, params: dict[str, Any], support: Float[np.ndarray, "K-1"] | None) -> dict[str, Any]:
    """A learned function's facts for the summary; the sinusoid is fitted on the part that inputs visit.

    The visited part holds the middle 99 % of the visits.
    """
    rows = np.asarray(params["values"], np.float64).reshape(-1, function.knots)
    if len(rows) > 1:
        return {"functions": len(rows), "min": float(rows.min()), "max": float(rows.max())}
    values = rows[0]
    grid, weight = np.asarray(function.grid(), np.float64), None
    inside = slice(None)
    if support is not None and support.sum() > 0:
        share = np.cumsum(support) / support.sum()
        first, last = int(np.searchsorted(share, 0.005)), int(np.searchsorted(share, 0.995)) + 2
        inside = slice(first, last)
        weight = (np.append(support, 0) + np.insert(support, 0, 0))[inside] + 1e-9
    facts = {"min": float(values.min()), "max": float(values.max())}
    if len(grid[inside]) >= 8:
        facts |= sinusoid_fit(grid[inside], values[inside], weight)
    return facts
