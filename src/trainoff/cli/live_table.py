"""A run as a live table: every trial's phase, latest loss or accuracy, what it uses, and how long it will be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainoff.analysis.format import about, quality, seconds, size
from trainoff.records import Record
from trainoff.report.progress import keys_of, setting_of
from trainoff.report.tables import ALWAYS, Column, heading, table
from trainoff.runner.estimate import Clock
from trainoff.runner.events import Story
from trainoff.runner.runner import Task

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import TaskID


REFRESH_S = 1.0  # drawing costs CPU that the running trial may want
MARKS = {"ok": ("✓", "green"), "unsupported": ("-", "dim"), "interrupted": ("!", "yellow")}
CHROME = 5  # lines around the rows: heading, summary, notes


class LiveTable:
    """Draws the table about once a second while trials run; a `with` ends it cleanly."""

    def __init__(self, clock: Clock, console: Console) -> None:
        self._clock = clock
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._tasks: Sequence[Task] = ()
        self._keys: Sequence[str] = ()
        self._running: Task | None = None
        self._story: Story | None = None
        self._note = ""
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = self._story = None
        self._live.transient = not any(task.to_run for task in self._tasks)  # what was done stays in sight
        self._draw()
        self._live.stop()

    def planned(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._keys = keys_of(tasks)
        self._draw()

    def waiting(self, sentence: str) -> None:
        self._note = sentence
        self._draw()

    def started(self, task: Task) -> None:
        self._running, self._story, self._note = task, None, ""
        self._draw()

    def update(self, task: Task, story: Story) -> None:
        self._story = story
        if time.monotonic() - self._drawn >= REFRESH_S:
            self._draw()

    def finished(self, task: Task, record: Record) -> None:
        self._running = self._story = None
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> RenderableType:
        rows = [self._row(task) for task in self._window()]
        columns = [
            Column(name, [row[at] for row in rows], worth, right) for at, (name, worth, right) in enumerate(HEADINGS)
        ]
        if self._keys:
            columns[2] = replace(columns[2], heading=heading(self._keys), shrinks=True)
        else:
            del columns[2]
        outer = Table.grid()
        outer.add_row(table(columns, self._console.width, [None] * len(rows)))
        outer.add_row(Text(f"  {self._summary()}", style="dim"))
        return outer

    def _window(self) -> Sequence[Task]:
        """As many trials as the terminal is high, the running one among them."""
        room = max(3, self._console.height - CHROME)
        if len(self._tasks) <= room:
            return self._tasks
        at = next((index for index, task in enumerate(self._tasks) if task is self._running), 0)
        start = min(max(0, at - room // 2), len(self._tasks) - room)
        return self._tasks[start : start + room]

    def _row(self, task: Task) -> list[Text | str]:
        trial = task.trial
        name = [trial.engine, setting_of(task, self._keys), trial.mode, str(trial.workers)]
        if task is self._running:
            left = about(self._clock.running_left())
            return [Text("▶", style="cyan"), *name, *_progress(self._story), left]
        if task.record and not task.to_run:
            mark, style = MARKS.get(task.record.status, ("✗", "red"))
            return [Text(mark, style=style), *name, *_result(task.record), ""]
        return [Text("·", style="dim"), *name, Text("waiting", style="dim"), *[""] * 6]

    def _summary(self) -> str:
        done = sum(not task.to_run for task in self._tasks)
        if self._note:
            return self._note
        gone, left = seconds(self._clock.gone()), about(self._clock.left())
        pages = "".join(f" · {name} {url}" for name, url in (self._story.pages if self._story else {}).items())
        return f"{done} of {len(self._tasks)} · {gone} gone · about {left} left{pages}"


HEADINGS: list[tuple[str, int, bool]] = [  # name, worth, whether it is aligned to the right
    (" ", ALWAYS, False),
    ("engine", ALWAYS, False),
    ("setting", ALWAYS, False),
    ("mode", 20, False),
    ("W", 25, True),
    ("phase", ALWAYS, False),
    ("result", ALWAYS, True),
    ("train", ALWAYS, True),
    ("CPU", 30, True),
    ("memory", 30, True),
    ("network", 10, True),
    ("left", 40, True),
]


def _progress(story: Story | None) -> list[str]:
    if story is None:
        return ["starting", "", "", "", "", ""]
    now = time.monotonic()
    loss = f"loss {story.loss:.3f}" if story.loss is not None else ""
    train = seconds(now - story.train_start - story.paused_s) if story.train_start else ""
    cpu, memory = seconds(story.now("user_s", "system_s")), size(story.now("pss"))
    return [story.phase, loss, train, cpu, memory, size(story.network_now())]


def _result(record: Record) -> list[str]:
    word = "done" if record.status == "ok" else record.status
    network = size(record.network_bytes)
    return [
        word,
        quality(record.result),
        seconds(record.train_s),
        seconds(record.cpu_s),
        size(record.peak_memory_bytes),
        network,
    ]


class Bars:
    """Draws what data/ says: one bar for each thing it names. Nothing is drawn outside a terminal."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
