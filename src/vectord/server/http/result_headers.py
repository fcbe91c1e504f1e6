"""Response headers that describe a result, the same for every product. Called for every result of the engine.

x-vectord-tokens-seen       tokens of all inputs together
x-vectord-tokens-kept       tokens that the model read
x-vectord-truncated         number of truncated inputs
x-vectord-truncated-inputs  their indexes from 0, comma separated, the first 100; absent if there are none
x-vectord-fingerprint       the space of the vectors; vectors of two spaces cannot be compared
x-vectord-score-kind        logit, probability, cosine, maxsim, dot or weighted
x-vectord-query-truncated   "true" if a rerank query was truncated; absent otherwise
server-timing               milliseconds per step, as browsers' tools show them: `parse` and `render` are the
                            product's, `queue` the wait for the first forward pass, `inference` from there to the end
                            of the last one

If several models read the same inputs, each with its own tokenizer, tokens are summed over the models, and an input
counts as truncated if any model truncated it.
"""

from __future__ import annotations

from collections.abc import Sequence

from vectord.observability.exchange import Steps
from vectord.schema import (
    ClassifyResult,
    DecodeResult,
    DocumentsResult,
    EmbedResult,
    ModelList,
    RerankResult,
    Result,
    SimilarityResult,
    Statistics,
    TextLength,
    Timings,
)

TOKENS_SEEN = "x-vectord-tokens-seen"
TOKENS_KEPT = "x-vectord-tokens-kept"
TRUNCATED = "x-vectord-truncated"
TRUNCATED_INPUTS = "x-vectord-truncated-inputs"
FINGERPRINT = "x-vectord-fingerprint"
SCORE_KIND = "x-vectord-score-kind"
QUERY_TRUNCATED = "x-vectord-query-truncated"
SERVER_TIMING = "server-timing"

MAX_INDICES = 100  # about 700 bytes; proxies commonly refuse responses with more than 4 kB of headers
NO_LENGTH = TextLength(0, 0)


def result_headers(result: Result) -> dict[str, str]:
    headers = _lengths_of(result)
    if isinstance(result, EmbedResult | DocumentsResult | RerankResult | ClassifyResult | SimilarityResult):
        headers[FINGERPRINT] = result.fingerprint
    if isinstance(result, RerankResult | ClassifyResult):
        headers[SCORE_KIND] = result.kind
    if isinstance(result, RerankResult) and result.query.truncated:
        headers[QUERY_TRUNCATED] = "true"
    return headers


def _lengths_of(result: Result) -> dict[str, str]:
    if isinstance(result, ModelList | DecodeResult | Statistics):
        return {}
    if isinstance(result, EmbedResult) and result.lengths:
        return length_headers(*result.lengths.values())
    if isinstance(result, RerankResult) and result.usage.further_tokens:  # a query that is not part of every pair
        return length_headers(result.usage.lengths, query=result.query)
    return length_headers(result.usage.lengths)


def length_headers(*by_model: Sequence[TextLength], query: TextLength = NO_LENGTH) -> dict[str, str]:
    """by_model: for each model, the lengths of all inputs; query: the length of a text that was read once."""
    seen, kept = query.seen, query.kept
    truncated = set()
    for lengths in by_model:
        for index, length in enumerate(lengths):
            seen += length.seen
            kept += length.kept
            if length.truncated:
                truncated.add(index)
    headers = {TOKENS_SEEN: str(seen), TOKENS_KEPT: str(kept), TRUNCATED: str(len(truncated))}
    if truncated:
        headers[TRUNCATED_INPUTS] = ",".join(map(str, sorted(truncated)[:MAX_INDICES]))
    return headers


def server_timing(steps: Steps, timings: Timings | None) -> str:
    """timings: None for a result without a forward pass, such as a list of models."""
    parse = f"parse;dur={steps.parse_s * 1000:.3f}"
    render = f"render;dur={steps.render_s * 1000:.3f}"
    if timings is None:
        return f"{parse}, {render}"
    return (
        f"{parse}, tokenize;dur={timings.tokenizing_s * 1000:.3f}, queue;dur={timings.waiting_s * 1000:.3f}, "
        f"inference;dur={timings.computing_s * 1000:.3f}, {render}"
    )
