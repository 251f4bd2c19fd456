"""Interleaved timing: every rival in turn, many rounds, so that whatever disturbs the machine disturbs all alike."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np


def interleave(rivals: Mapping[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """Median seconds of each rival's call, results awaited; one warm-up call each compiles it first."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for call in rivals.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in rivals.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - began)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


def ratios(seconds: Mapping[str, float], rival: str) -> dict[str, float]:
    """Each median over the rival's.

    >>> ratios({"loop": 2.0, "vmap": 1.0}, "loop")
    {'loop': 1.0, 'vmap': 0.5}
    """
    return {name: taken / seconds[rival] for name, taken in seconds.items()}
