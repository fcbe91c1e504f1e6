"""Renders results: usual ones on the event loop, large ones in a thread and only if there is room for the response.

Called by handler.py. In a thread a response is rendered row by row, because serializing it at once holds the
interpreter, and with it every other request, for half a second.
"""

from __future__ import annotations

import asyncio
from functools import partial

from vectord.products.common.dialect import Call, Rendered
from vectord.products.common.vectors import render_row_by_row
from vectord.schema import DocumentsResult, EmbedResult, MultiResult, Result
from vectord.server.http.hardening.write_backpressure import WriteBackpressure

SMALL_NUMBERS = 2**14  # 180 kB of JSON, for which a thousand connections need no bound
RENDER_ON_LOOP_NUMBERS = 2**18  # 7 ms
BYTES_PER_NUMBER = 16  # 12 of a float32 in JSON with its comma, for all but 1 in 1,000; 4 in its array
THREADS = 2  # they share one interpreter, so more of them finish no sooner


class Rendering:
    def __init__(self, backpressure: WriteBackpressure) -> None:
        self._backpressure = backpressure
        self._threads = asyncio.Semaphore(THREADS)

    async def render(self, call: Call, result: Result) -> Rendered:
        """The response. Raises Overloaded if it is large and clients do not read earlier ones, and what `call` raises.

        After a response, `sent` must be called.
        """
        numbers = count_numbers(result)
        if numbers <= SMALL_NUMBERS:
            return call.answered(result)
        async with self._backpressure.room(numbers * BYTES_PER_NUMBER):
            if numbers <= RENDER_ON_LOOP_NUMBERS:
                rendered = call.answered(result)
            else:
                async with self._threads:
                    rendered = await asyncio.to_thread(render_row_by_row, partial(call.answered, result))
            self._backpressure.hold(len(rendered.body))  # some products write twice as many digits
        return rendered

    def sent(self, result: Result, rendered: Rendered) -> None:
        """The connection has the response, or it will not be sent."""
        if count_numbers(result) > SMALL_NUMBERS:
            self._backpressure.give_back(len(rendered.body))


def count_numbers(result: Result) -> int:
    """The numbers in the vectors of a result. Scores and sparse vectors are never large."""
    if isinstance(result, EmbedResult):
        matrices = [*result.dense.values(), *(result.tokens or ()), *(result.colbert or ())]
        return sum(matrix.size for matrix in matrices)
    if isinstance(result, DocumentsResult):
        return sum(rows.size for document in result.documents for rows in document.vectors.values())
    if isinstance(result, MultiResult):
        return sum(map(count_numbers, result.results))
    return 0
