"""The progress line: stage, step, loss, accuracy, steps/s, ETA. It reads Python floats only, never the device."""

import collections
import logging
import time
from collections.abc import Mapping
from types import TracebackType

import rich.console
import rich.progress

from ssa_jax.report.run_folder import is_writer

logger = logging.getLogger(__name__)

PLAIN_SECONDS = 5.0  # between two lines where stderr is no terminal
LIVE_SECONDS = 0.1  # between two redraws of the live line
WINDOW = 20  # updates over which steps/s is taken


class Progress:
    """One line a stage, live on a terminal; else a plain log line about every 5 seconds. Process 0 only.

    with Progress("stage 1", total=1500) as progress:
        progress.update(25, loss=0.693, accuracy=0.5, extra={"tokens/s": 1.2e5})

    Args:
        stage: what is running, in the reader's words.
        total: steps of the whole stage.
        console: where the live line goes; stderr by default.
    """

    def __init__(self, stage: str, total: int, console: rich.console.Console | None = None):
        self.stage, self.total = stage, total
        console = console or rich.console.Console(stderr=True)
        self._silent = not is_writer()
        self._line = None
        if console.is_terminal and not console.is_dumb_terminal and not self._silent:
            bar = [rich.progress.BarColumn(bar_width=16)] if console.width >= 110 else []
            # one text, so that a narrow terminal cuts the last figures and not the step
            text = "[bold]{task.description}[/bold]  {task.completed}/{task.total}  {task.fields[figures]}"
            self._line = rich.progress.Progress(
                *bar,
                rich.progress.TextColumn(text),
                console=console,
                auto_refresh=False,  # nothing moves between updates, so no thread is needed
            )
            self._task = self._line.add_task(stage, total=total, figures="compiling")
        self._recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)
        self._start, self._shown = time.monotonic(), float("-inf")

    def __enter__(self) -> "Progress":
        if self._line:
            self._line.start()
            self._line.refresh()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._line:
            self._line.stop()

    def update(
        self,
        step: int,
        loss: float | None = None,
        accuracy: float | None = None,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        """Shows the state after `step` steps. The numbers may be one chunk old; `extra` adds columns by name."""
        if self._silent:
            return
        now, last = time.monotonic(), step >= self.total
        self._recent.append((now, step))
        if not last and now - self._shown < (LIVE_SECONDS if self._line else PLAIN_SECONDS):
            return
        self._shown = now
        parts = [] if loss is None else [f"loss {loss:.3g}"]
        parts += [] if accuracy is None else [f"acc {accuracy:.3f}"]
        parts += self._pace(step, now)
        parts += [f"{value:,.0f} {name}" for name, value in (extra or {}).items()]
        if self._line:
            self._line.update(self._task, completed=step, figures="  ".join(parts), refresh=True)
        else:
            logger.info("%s  %d/%d  %s", self.stage, step, self.total, "  ".join(parts))

    def _pace(self, step: int, now: float) -> list[str]:
        """steps/s over the recent updates (the first one carries the compilation and only starts the clock), ETA."""
        (then, since), rate = self._recent[0], None
        if step > since and now > then:
            rate = (step - since) / (now - then)
        pace = [] if rate is None else [f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s"]
        if step >= self.total:
            return [*pace, f"took {_clock(now - self._start)}"]
        return pace if rate is None else [*pace, f"ETA {_clock((self.total - step) / rate)}"]


def _clock(seconds: float) -> str:
    """Seconds as a reader wants them.

    >>> _clock(74), _clock(3674)
    ('1:14', '1:01:14')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
