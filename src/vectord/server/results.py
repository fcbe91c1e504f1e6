"""The headers and the size of a result, which do not depend on the transport: gRPC sends the headers as metadata.

They are the same for every product: MEANINGS, and server-timing, the milliseconds of each step: `parse` (body to
request), `tokenize`, `queue` (until the first forward pass), `inference` (from there to the end of the last one),
`render` (result to body). A header that says nothing about a result is absent.

If several models read the same inputs, each with its own tokenizer, tokens are summed over the models, and an input
counts as truncated if any model truncated it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vectord.observability.exchange import Steps
from vectord.products.common.batches import BatchResult
from vectord.schema import (
    ClassifyResult,
    DecodeResult,
    DocumentsResult,
    EmbedResult,
    MultiResult,
    RerankResult,
    Result,
    TextLength,
    TextLengths,
    Timings,
    TokenizeResult,
    Usage,
)

TOKENS_SEEN = "x-vectord-tokens-seen"
TOKENS_KEPT = "x-vectord-tokens-kept"
TRUNCATED = "x-vectord-truncated"
TRUNCATED_INPUTS = "x-vectord-truncated-inputs"
FOREIGN_IDS = "x-vectord-foreign-ids"
FINGERPRINT = "x-vectord-fingerprint"
SCORE_KIND = "x-vectord-score-kind"
QUERY_TRUNCATED = "x-vectord-query-truncated"
SERVER_TIMING = "server-timing"

MAX_INDICES = 100  # about 700 bytes; proxies commonly refuse responses with more than 4 kB of headers
MEANINGS: Mapping[str, str] = {
    TOKENS_SEEN: "Tokens of the inputs",
    TOKENS_KEPT: "Tokens that the model read",
    TRUNCATED: "Number of truncated inputs",
    TRUNCATED_INPUTS: f"Indexes of truncated inputs, the first {MAX_INDICES}",
    FOREIGN_IDS: f"Indexes of inputs with token ids that are not the model's, the first {MAX_INDICES}",
    FINGERPRINT: "The space of the vectors",
    SCORE_KIND: "The kind of the scores",
    QUERY_TRUNCATED: "Whether the query was truncated",
}
NO_LENGTH = TextLength(0, 0)

SMALL_NUMBERS = 2**14  # 180 kB of JSON; such responses are rendered at once and not counted in WriteBackpressure
NUMBERS_PER_TOKEN = 32  # that take as long to render: 0.9 us
CHARACTERS_PER_NUMBER = 16  # that take as many bytes
RENDERING_THREADS = 2  # per transport, for larger ones; more would not be faster, because of the GIL


# --- headers ---------------------------------------------------------------------------------------------------


def result_headers(result: Result | BatchResult) -> dict[str, str]:
    """Each header if the result has the fact: a list of models, for example, has none of them."""
    usage: Usage | None = getattr(result, "usage", None)
    if usage is None:
        headers = {}
    elif isinstance(result, EmbedResult) and result.lengths:
        headers = length_headers(*result.lengths.values())
    elif isinstance(result, RerankResult) and usage.further_tokens:  # a query that is not part of every pair
        headers = length_headers(usage.lengths, query=result.query)
    else:
        headers = length_headers(usage.lengths)
    if (fingerprint := getattr(result, "fingerprint", None)) is not None:
        headers[FINGERPRINT] = fingerprint
    if isinstance(result, RerankResult | ClassifyResult):
        headers[SCORE_KIND] = result.kind
    if isinstance(result, RerankResult) and result.query.truncated:
        headers[QUERY_TRUNCATED] = "true"
    return headers


def length_headers(*by_model: TextLengths, query: TextLength = NO_LENGTH) -> dict[str, str]:
    """by_model: for each model, the lengths of all inputs; query: of a query that is not part of every pair."""
    kept, cut = query.kept, query.seen - query.kept
    truncated, foreign = set[int](), set[int]()
    for lengths in by_model:
        kept += sum(lengths.kept)
        for index, length in lengths.details.items():
            cut += length.seen - length.kept
            if length.truncated:
                truncated.add(index)
            if length.foreign:
                foreign.add(index)
    headers = {TOKENS_SEEN: str(kept + cut), TOKENS_KEPT: str(kept), TRUNCATED: str(len(truncated))}
    for name, indices in ((TRUNCATED_INPUTS, truncated), (FOREIGN_IDS, foreign)):
        if indices:
            headers[name] = ",".join(map(str, sorted(indices)[:MAX_INDICES]))
    return headers


def server_timing(steps: Steps, timings: Timings | None) -> str:
    """timings: None for a result without a forward pass, such as a list of models."""
    parse = f"parse;dur={(steps.parsed_s - steps.body_read_s) * 1000:.3f}"
    render = f"render;dur={(steps.rendered_s - steps.answered_s) * 1000:.3f}"
    if timings is None:
        return f"{parse}, {render}"
    return (
        f"{parse}, tokenize;dur={timings.tokenizing_s * 1000:.3f}, "
        f"queue;dur={timings.waiting_s * 1000:.3f}, inference;dur={timings.computing_s * 1000:.3f}, {render}"
    )


# --- size ------------------------------------------------------------------------------------------------------


def count_numbers(result: Result | BatchResult) -> int:
    """How many numbers the vectors of a result have; tokens and texts count as the numbers that render as long. Scores
    and sparse vectors are always small and count as 0."""
    if isinstance(result, EmbedResult):
        matrices = [*result.dense.values(), *(result.tokens or ()), *(result.colbert or ())]
        encodings = 0 if result.muvera is None else result.muvera.size
        return encodings + sum(matrix.size for matrix in matrices)
    if isinstance(result, DocumentsResult):
        return sum(rows.size for document in result.documents for rows in document.vectors.values())
    if isinstance(result, MultiResult):
        return sum(map(count_numbers, result.results))
    if isinstance(result, TokenizeResult):
        return NUMBERS_PER_TOKEN * sum(map(len, result.tokens))
    if isinstance(result, DecodeResult):
        return sum(map(len, result.texts)) // CHARACTERS_PER_NUMBER
    return 0
