"""Memory two ways: what XLA plans for temporaries, and the most that a process really held."""

import concurrent.futures
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

_STATUS = Path("/proc/self/status")
MIB = 2**20


def temporaries(function: Callable[..., Any], *shapes: Any) -> float:
    """MiB of temporary buffers in the compiled program; nothing is run."""
    return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes / MIB


def process_peak(work: Callable[[int], Any], small: int, large: int) -> tuple[float, float]:
    """Peak resident MiB of a fresh process after work(small), and by how much work(large) raised it.

    `work` must be picklable; the small run pays for libraries and compilers. NaN where the system does not tell.
    """
    if not _STATUS.exists():
        return float("nan"), float("nan")
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as pool:
        return pool.submit(_peaks, work, small, large).result()


def _peaks(work: Callable[[int], Any], small: int, large: int) -> tuple[float, float]:
    jax.block_until_ready(work(small))
    before = resident_peak()
    jax.block_until_ready(work(large))
    return before, resident_peak() - before


def resident_peak() -> float:
    """The most memory that this process held so far, MiB."""
    # not getrusage: its figure survives exec, so that a child starts with its parent's
    return int(re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text())[1]) / 1024
