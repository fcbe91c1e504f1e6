"""Whether texts are queries or documents, in the words of Jina, Cohere, Voyage, Weaviate and others."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.schema import InputKind

# Their further tasks (classification, clustering ...) have no meaning here.
_KINDS: Mapping[str, InputKind] = {
    "query": "query",
    "retrieval.query": "query",
    "search_query": "query",
    "code.query": "query",
    "document": "document",
    "passage": "document",
    "retrieval.passage": "document",
    "search_document": "document",
    "code.passage": "document",
}


def read_kind(*words: str | None) -> InputKind | None:
    """What the first word that means anything says."""
    return next((_KINDS[word] for word in words if word is not None and word in _KINDS), None)
