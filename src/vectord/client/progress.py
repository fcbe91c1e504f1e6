"""A progress bar on stderr for large calls: finished texts, texts per second, tokens, remaining time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from vectord.client.calls import ClientCall

Advance: TypeAlias = Callable[[int, int], None]  # finished texts, and their tokens


@contextmanager
def progress_of(call: ClientCall[Any]) -> Iterator[Advance]:
    """Shows the bar if the call requests it; by default, if the call is large and stderr is a terminal."""
    shown = call.is_large and sys.stderr.isatty() if call.progress is None else call.progress
    if not shown:
        yield lambda texts, tokens: None
        return
    columns = (BarColumn(bar_width=None), Done(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), expand=True)
    task = progress.add_task("", total=sum(len(part.items) for part in call.parts), tokens=0)
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
