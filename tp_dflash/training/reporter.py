"""What a person sees of a run while it goes on: a bar on the terminal, JSON lines, TensorBoard.

In: figures of a logged step, already reduced over all ranks. Out: the same figures in three places. Only the reporting
rank (the first drafter rank) has a reporter.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tp_dflash.config.logging import LoggingConfig
from tp_dflash.training.boards import open_boards
from tp_dflash.training.run_folder import RunFolder
from tp_dflash.training.telling_files import append_line, replace_text

_LOG_WIDTH = 160
_BEAT_SECONDS = 5.0

Figure = float | int | list[float] | dict[str, float]


class Reporter:
    """Writes logged steps; a context manager, so that the bar and the files are closed on any way out."""

    def __init__(self, folder: RunFolder, first_step: int, total_steps: int, config: LoggingConfig) -> None:
        self.folder = folder
        self.total_steps = total_steps
        self.first_step = self.steps_done = first_step
        terminal = Console()
        # A log file has no width of its own; tables need one.
        self.console = terminal if terminal.is_terminal else Console(width=_LOG_WIDTH)
        self._started = time.monotonic()
        self._beat_at = 0.0
        self._rate: Figure | None = None
        self._progress = Progress(
            TextColumn("train"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID = self._progress.add_task("train", total=total_steps, completed=first_step, figures="")
        self._boards = open_boards(folder, config)
        self._unwritten: str | None = None

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        for board in self._boards:
            with suppress(OSError):  # a full disk took no figures before either, and was told
                board.close()

    def advance(self, steps_done: int) -> None:
        """Move the bar and, now and then, the heartbeat; called every step, reads nothing from the device."""
        self.steps_done = steps_done
        self._beat(steps_done)
        self._progress.update(self._task, completed=steps_done)

    def log(self, steps_done: int, figures: Mapping[str, Figure]) -> None:
        """Write the figures of one logged step everywhere; infinite and undefined ones become null."""
        self.steps_done = steps_done
        self._beat(steps_done, figures)
        self._keep({"step": steps_done, **{key: _finite(value) for key, value in figures.items()}})
        self._show(dict(_scalars(figures)), steps_done)
        summary = _summary(figures)
        self._progress.update(self._task, completed=steps_done, figures=summary)
        if not self.console.is_terminal:
            left = self._seconds_left(steps_done)
            self.console.print(
                f"step {steps_done}/{self.total_steps}  {summary}  left {left:.0f} s", highlight=False, soft_wrap=True
            )

    def _seconds_left(self, steps_done: int) -> float:
        seconds_a_step = (time.monotonic() - self._started) / max(1, steps_done - self.first_step)
        return seconds_a_step * (self.total_steps - steps_done)

    def _beat(self, steps_done: int, figures: Mapping[str, Figure] | None = None) -> None:
        """Rewrite the run's heartbeat: step, rate, time left; at logged steps and at most every few seconds between."""
        now = time.monotonic()
        if figures is None and now - self._beat_at < _BEAT_SECONDS:
            return
        self._beat_at = now
        if figures is not None and "tokens_per_second" in figures:
            self._rate = figures["tokens_per_second"]
        taken = steps_done - self.first_step
        content = {
            "step": steps_done,
            "total_steps": self.total_steps,
            "steps_per_second": taken / max(now - self._started, 1e-9),
            "tokens_per_second": self._rate,
            "seconds_left": self._seconds_left(steps_done) if taken else None,
            "written_at": time.time(),
        }
        replace_text(self.folder.heartbeat, json.dumps(content) + "\n")

    def log_evaluation(self, steps_done: int, figures: Mapping[str, float]) -> None:
        """Write an evaluation's figures beside those of training."""
        named = {f"evaluation/{name}": value for name, value in figures.items()}
        self._keep({"step": steps_done, **named})
        self._show(named, steps_done)

    def _keep(self, figures: Mapping[str, object]) -> None:
        """A line of metrics.jsonl; a reason why there is none is told once, until there is one again."""
        reason = append_line(self.folder.metrics, json.dumps(figures))
        if reason is not None and self._unwritten is None:
            self.say(f"figures are not kept: {reason}; training goes on")
        self._unwritten = reason

    def _show(self, scalars: dict[str, float], steps_done: int) -> None:
        for board in list(self._boards):
            try:
                board.show(scalars, steps_done)
            except OSError as error:
                self._boards.remove(board)
                self.say(f"{type(board).__name__} is shown no more figures: {error}; training goes on")

    def say(self, text: str) -> None:
        """One line for the person watching, above the bar."""
        self._progress.console.print(text, highlight=False, soft_wrap=True)


def _summary(figures: Mapping[str, Figure]) -> str:
    words = {"loss": ".4f", "accuracy": ".3f", "streak": ".3f", "learning_rate": ".2e", "tokens_per_second": ",.0f"}
    parts = [
        f"{name.replace('_per_second', '/s')} {figures[name]:{form}}" for name, form in words.items() if name in figures
    ]
    memory = figures.get("peak_gib_by_rank")
    if isinstance(memory, dict) and memory:
        parts.append("peak GiB " + " ".join(f"{rank}:{gib:.1f}" for rank, gib in memory.items()))
    return "  ".join(parts)


def _scalars(figures: Mapping[str, Figure]) -> list[tuple[str, float]]:
    scalars: list[tuple[str, float]] = []
    for name, value in figures.items():
        if isinstance(value, list):
            scalars += [(f"{name}/{index:02d}", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            scalars += [(f"{name}/{key}", item) for key, item in value.items()]
        else:
            scalars.append((name, float(value)))
    return scalars


def _finite(value: Figure) -> object:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value if math.isfinite(value) else None
