"""Interleaved timing: every rival in turn, many rounds, so that whatever disturbs the machine disturbs all alike."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

PAUSE = 0.005
"""Seconds between calls, in which the threads of one library stop spinning before another one's turn."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """Median seconds of a unit of work, and the median and quartiles of its time over the baseline's, by round."""

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    def inverse(self) -> "Timed":
        """The baseline's time over this call's."""
        return dataclasses.replace(self, ratio=1 / self.ratio, low=1 / self.high, high=1 / self.low)

    def cells(self) -> tuple[str, str]:
        """For a table: milliseconds; ratio with its quartiles.

        >>> Timed(0.0214, 0.5123, 0.49, 0.55, 15).cells()
        ('21.4', '0.51 [0.49, 0.55]')
        """
        ms, ratios = 1e3 * self.seconds, (self.ratio, self.low, self.high)
        median, low, high = (f"{ratio:.{2 if self.ratio >= 0.1 else 3}f}" for ratio in ratios)
        return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", f"{median} [{low}, {high}]"


def interleave(rivals: Mapping[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """Median seconds of each rival's call, results awaited; one warm-up call each compiles it first."""
    return {name: float(np.median(taken)) for name, taken in _samples(rivals, rounds).items()}


def compare(
    rivals: Mapping[str, Callable[[], Any]],
    baseline: str,
    rounds: int = 15,
    most: int = 3,
    units: Mapping[str, int] | None = None,
) -> dict[str, Timed]:
    """Each rival beside the baseline, by the median of the ratios within a round.

    Where the quartiles of a ratio lie further apart than a tenth of its median, all rivals run `rounds` rounds more,
    up to `most` times in all. `units`: how many units of work, such as train steps, a call does; 1 where not named.
    """
    samples = {name: np.zeros(0) for name in rivals}
    for again in range(most):
        for name, taken in _samples(rivals, rounds, warm_up=again == 0).items():
            samples[name] = np.append(samples[name], np.divide(taken, (units or {}).get(name, 1)))
        ratios = {name: taken / samples[baseline] for name, taken in samples.items()}
        quartiles = {name: np.quantile(ratio, (0.25, 0.5, 0.75)) for name, ratio in ratios.items()}
        if all(high - low <= 0.1 * median for low, median, high in quartiles.values()):
            break
    return {
        name: Timed(float(np.median(samples[name])), median, low, high, len(samples[name]))
        for name, (low, median, high) in quartiles.items()
    }


def _samples(rivals: Mapping[str, Callable[[], Any]], rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    if warm_up:
        for call in rivals.values():
            jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in rivals.items():
            time.sleep(PAUSE)
            began = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(seconds: Mapping[str, float], rival: str) -> dict[str, float]:
    """Each median over the rival's.

    >>> ratios({"loop": 2.0, "vmap": 1.0}, "loop")
    {'loop': 1.0, 'vmap': 0.5}
    """
    return {name: taken / seconds[rival] for name, taken in seconds.items()}
