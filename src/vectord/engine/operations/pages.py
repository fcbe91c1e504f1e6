"""PDFs among the inputs of a request: each of their pages becomes an input, and has a row of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec.structs import replace

from vectord.engine.operations.task import PART_CHARACTERS, Task
from vectord.errors import InvalidRequest, TooManyInputs, VectordError
from vectord.schema import EmbedRequest, EmbedResult, Input, InputPage, Media
from vectord.text.pdf import pages_of, picture_of

MAX_PAGES = 100  # of a request: a page has a thousand rows or more, which stay in memory until its answer


def has_pdf(inputs: Sequence[Input]) -> bool:
    return any(isinstance(one, Media) and one.has_pages for one in inputs)


async def embed_pages(
    request: EmbedRequest, task: Task, embed: Callable[[EmbedRequest], Awaitable[EmbedResult]]
) -> EmbedResult:
    """What `embed` makes of the pages, with their places; errors have the index of the file."""
    request, places = await _split(request, task)
    try:
        result = await embed(request)
    except VectordError as error:
        if error.index is None:
            raise
        raise error.at(index=places[error.index].index) from error.__cause__
    failures = {row: error.at(index=places[row].index) for row, error in result.failures.items()}
    pictures = []
    for page in request.inputs if request.pictures else ():
        drawn = isinstance(page, Media) and page.page is not None
        pictures.append(await task.pool.images.run(PART_CHARACTERS, partial(picture_of, page)) if drawn else b"")
    return replace(result, pages=places, pictures=pictures, failures=failures)


async def _split(request: EmbedRequest, task: Task) -> tuple[EmbedRequest, Sequence[InputPage]]:
    """The request for the pages. With `partial`, a file that cannot be read remains an input, which fails later."""
    inputs: list[Input] = []
    places: list[InputPage] = []
    pages = 0
    for index, one in enumerate(request.inputs):
        found: Sequence[Input] = [one]
        if isinstance(one, Media) and one.has_pages:
            try:
                found = await task.pool.images.run(PART_CHARACTERS, partial(pages_of, one, index))
            except InvalidRequest:
                if not request.partial:
                    raise
            pages += len(found)
        if pages > MAX_PAGES:
            template = "{field}: the PDFs of a request may have at most {limit} pages in all."
            raise TooManyInputs(template, field="inputs", index=index, limit=MAX_PAGES)
        inputs += found
        places += [InputPage(index, page.page if isinstance(page, Media) else None) for page in found]
    return replace(request, inputs=inputs), places
