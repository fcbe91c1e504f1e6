"""What a result says in headers, whatever the dialect: lengths, vector space, and what kind of scores they are.

`x-vectord-fingerprint`      the space the vectors belong to; vectors of two spaces cannot be compared
`x-vectord-score-kind`       logit, probability, cosine, maxsim, dot or weighted
`x-vectord-query-truncated`  "true" if a query to rank by was cut; absent if not

Called by handler.py for every answer that the engine gave.
"""

from __future__ import annotations

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
)
from vectord.server.http.hardening.length_headers import length_headers

FINGERPRINT = "x-vectord-fingerprint"
SCORE_KIND = "x-vectord-score-kind"
QUERY_TRUNCATED = "x-vectord-query-truncated"


def result_headers(result: Result) -> dict[str, str]:
    headers = _lengths(result)
    if isinstance(result, EmbedResult | DocumentsResult | RerankResult | ClassifyResult | SimilarityResult):
        headers[FINGERPRINT] = result.fingerprint
    if isinstance(result, RerankResult | ClassifyResult):
        headers[SCORE_KIND] = result.kind
    if isinstance(result, RerankResult) and result.query.truncated:
        headers[QUERY_TRUNCATED] = "true"
    return headers


def _lengths(result: Result) -> dict[str, str]:
    if isinstance(result, ModelList | DecodeResult | Statistics):
        return {}
    if isinstance(result, EmbedResult) and result.lengths:
        return length_headers(*result.lengths.values())
    if isinstance(result, RerankResult) and result.usage.further_tokens:  # a query that is not part of every pair
        return length_headers(result.usage.lengths, query=result.query)
    return length_headers(result.usage.lengths)
