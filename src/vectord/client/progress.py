"""A progress bar on stderr for large calls: finished texts, texts per second, tokens, remaining time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from .requests import RequestPart

Advance: TypeAlias = Callable[[int, int], None]  # finished texts, and their tokens


@contextmanager
def progress_of(parts: Sequence[RequestPart], shown: bool | None, *, is_large: bool) -> Iterator[Advance]:
    """shown: whether there is a bar; None: for a large call, if stderr is a terminal."""
    if not (is_large and sys.stderr.isatty() if shown is None else shown):
        yield lambda texts, tokens: None
        return
    columns = (BarColumn(bar_width=None), Done(), TimeRemainingColumn())
    # rich's own bars in notebooks need ipywidgets.
    console = Console(stderr=True, force_jupyter=False, force_terminal="ipykernel" in sys.modules or None)
    progress = Progress(*columns, console=console, expand=True)
    task = progress.add_task("", total=sum(len(part.items) for part in parts), tokens=0)
    gone = suppress(OSError, ValueError)  # what rich raises without its terminal, which ends no call

    def advance(texts: int, tokens: int) -> None:
        before = progress.tasks[0].fields["tokens"]
        with gone:
            progress.update(task, advance=texts, tokens=before + tokens)

    with gone:
        progress.start()
    try:
        yield advance
    finally:
        with gone:
            progress.stop()


class Done(ProgressColumn):
    """1,280/100,000 texts, 410/s, 78,000 tokens"""

    def render(self, task: Task) -> Text:
        elapsed_s = task.finished_time or task.elapsed or 0.0
        rate = f"{task.completed / elapsed_s:,.0f}" if elapsed_s else "-"
        tokens = task.fields["tokens"]
        return Text(f"{task.completed:,.0f}/{task.total or 0:,.0f} texts, {rate}/s, {tokens:,} tokens")
