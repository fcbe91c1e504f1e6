"""Makes answers of results: usual ones on the event loop, large ones in a thread and only where there is room for them.

Called by handler.py. In the thread an answer is made piece by piece (wire/vectors.py), because one that is dumped at
once keeps the interpreter, and with it every other request, for half a second.
"""

from __future__ import annotations

import asyncio
from functools import partial

from vectord.products.common.dialect import Call, Rendered
from vectord.products.common.vectors import render_row_by_row
from vectord.schema import DocumentsResult, EmbedResult, MultiResult, Result
from vectord.server.http.hardening.unsent import Unsent

SMALL_NUMBERS = 2**14  # 180 kB of JSON: what a thousand connections may well hold
RENDERED_ON_LOOP_NUMBERS = 2**18  # 7 ms
BYTES_PER_NUMBER = 16  # 12 of a float32 as JSON, its comma and, but for one in a thousand, all digits; 4 of its array
AT_ONCE = 2  # in threads: they share one interpreter, so that more of them end no sooner


class Rendering:
    def __init__(self, unsent: Unsent) -> None:
        self._unsent = unsent
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def answer(self, call: Call, result: Result) -> Rendered:
        """What goes out. Raises Overloaded where it is large and those before it are not read, and what render does.

        `written` is to be called once it is, if there was an answer.
        """
        numbers = numbers_of(result)
        if numbers <= SMALL_NUMBERS:
            return call.answered(result)
        async with self._unsent.room(numbers * BYTES_PER_NUMBER):
            rendered = await self._large(call, result, numbers)
            self._unsent.hold(len(rendered.body))  # some dialects write twice as many digits
        return rendered

    async def _large(self, call: Call, result: Result, numbers: int) -> Rendered:
        if numbers <= RENDERED_ON_LOOP_NUMBERS:
            return call.answered(result)
        async with self._turns:
            return await asyncio.to_thread(render_row_by_row, partial(call.answered, result))

    def written(self, result: Result, rendered: Rendered) -> None:
        """What `answer` made of it is the connection's, or nobody's."""
        if numbers_of(result) > SMALL_NUMBERS:
            self._unsent.give_back(len(rendered.body))


def numbers_of(result: Result) -> int:
    """How many numbers the vectors of a result have; those of scores and sparse vectors are never many."""
    if isinstance(result, EmbedResult):
        matrices = [*result.dense.values(), *(result.tokens or ()), *(result.colbert or ())]
        return sum(matrix.size for matrix in matrices)
    if isinstance(result, DocumentsResult):
        return sum(rows.size for document in result.documents for rows in document.vectors.values())
    if isinstance(result, MultiResult):
        return sum(map(numbers_of, result.results))
    return 0
