"""The progress line: live on a terminal, plain lines elsewhere, never slower than it must be."""

import io
import logging

import jax
import pytest
import rich.console

from ssa_jax.report import progress
from ssa_jax.report.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def console(terminal):
    return rich.console.Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def test_live_line_shows_stage_step_loss_accuracy_speed_and_eta(clock):
    screen = console(terminal=True)
    with Progress("stage 1", total=1000, console=screen) as line:
        assert "compiling" in screen.file.getvalue()
        for step in (100, 200, 300):
            clock[0] += 2
            line.update(step, loss=0.6931, accuracy=0.5, extra={"tokens/s": 12345.6})
    last = next(text for text in screen.file.getvalue().splitlines() if "300/1000" in text)
    for part in ("stage 1", "300/1000", "loss 0.693", "acc 0.500", "50 steps/s", "ETA 0:14", "12,346 tokens/s"):
        assert part in last


def test_without_a_terminal_a_plain_line_every_five_seconds(clock, caplog):
    caplog.set_level(logging.INFO)
    with Progress("stage 2, gelu", total=100, console=console(terminal=False)) as line:
        for step in range(1, 101):
            clock[0] += 0.2
            line.update(step, loss=0.5)
    lines = [record.getMessage() for record in caplog.records]
    assert [text.split("  ")[1] for text in lines] == ["1/100", "26/100", "51/100", "76/100", "100/100"]
    assert "5 steps/s" in lines[-1] and "took 0:20" in lines[-1]


def test_the_first_update_carries_the_compilation_and_no_speed(clock, caplog):
    caplog.set_level(logging.INFO)
    line = Progress("stage 1", total=100, console=console(terminal=False))
    clock[0] += 60
    line.update(60)
    assert "steps/s" not in caplog.text
    clock[0] += 10
    line.update(70)
    assert "1 steps/s  ETA 0:30" in caplog.text


def test_other_processes_stay_silent(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    screen = console(terminal=True)
    with Progress("stage 1", total=1, console=screen) as line:
        line.update(1, loss=0.1)
    assert screen.file.getvalue() == "" and caplog.text == ""
