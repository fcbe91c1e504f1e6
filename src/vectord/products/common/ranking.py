"""Reranked documents as Cohere, Jina, infinity, vLLM and Semantic Explorer read and write them.

These products share a path, and their bodies may be alike. So each result has every key that one of their clients
reads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from vectord.errors import InvalidField
from vectord.products.common.body import Count
from vectord.products.common.chat import ContentPart
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import InputItem, TextItem, agreed
from vectord.schema import ClassifyResult, Float32, Item, RerankRequest, RerankResult, best_first, item_of

T = TypeVar("T")
Order: TypeAlias = Callable[[Float32, Float32 | None], Iterable[int]]  # scores, logits: (N,) -> N places


class TextDocument(msgspec.Struct):
    """A document of a response."""

    text: str


class ShownDocument(msgspec.Struct):
    """A document of a response. `text` is null if it has an image; the rest is as it was sent."""

    text: str | None
    multi_modal: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET  # its `content`
    image: str | msgspec.UnsetType = msgspec.UNSET


class RankedItem(msgspec.Struct):
    """The keys of every item of `ranked`. Products add `text` and `document` as they have them."""

    index: int
    relevance_score: float
    score: float  # the same


class Rank(msgspec.Struct):
    """TEI's form of a result."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET  # only with return_text


class ScoredLabel(msgspec.Struct):
    label: str
    score: float


class ContentItem(msgspec.Struct):
    """Texts and images, in order, as one item. Texts alone are joined by newlines."""

    content: Annotated[list[ContentPart], msgspec.Meta(min_length=1)]

    def read(self, field: str, index: int | None = None) -> Item:
        return item_of([part.read(field, index) for part in self.content])


class DocumentItem(InputItem):
    """A text or an image in an object, or both in parts, as in ContentItem."""

    content: Annotated[list[ContentPart], msgspec.Meta(min_length=1)] | None = None

    def shown(self, item: Item) -> dict[str, Any]:
        """The document in a response, for all these products but infinity. item: what was read of it."""
        if isinstance(item, str) and self.content is None:
            return as_object(item)
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if self.content is None:
            return {"text": None, **given}
        parts = [{key: value for key, value in asdict(part).items() if value is not None} for part in self.content]
        return {"text": None, "multi_modal": parts}


Query: TypeAlias = str | ContentItem
Documents: TypeAlias = list[str | DocumentItem]
TextDocuments: TypeAlias = list[str | TextItem]

EXAMPLE: Mapping[str, Any] = {
    "query": "What is the capital of France?",
    "documents": ["Paris is the capital of France.", "Cats sleep most of the day."],
}


def read_query(query: Query) -> Item:
    return query if isinstance(query, str) else query.read("query")


def read_documents(documents: Documents) -> list[Item]:
    """Raises InvalidField for a document that is neither text nor image."""
    return [read_document(document, index) for index, document in enumerate(documents)]


def read_document(document: str | DocumentItem, index: int) -> Item:
    """Raises as `read_documents`."""
    if isinstance(document, str):
        return document
    if document.content is not None:
        return ContentItem(document.content).read("passages", index)
    return document.read_item("passages", index)


def read_texts(documents: Sequence[str | TextItem]) -> list[str]:
    """Raises InvalidField for a document that is not a text alone."""
    return [
        document if isinstance(document, str) else document.read("passages", index)
        for index, document in enumerate(documents)
    ]


def shown_documents(documents: Documents, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Each document in a response. items: what `read_documents` made of them."""
    return [
        as_object(one) if isinstance(one, str) else one.shown(item) for one, item in zip(documents, items, strict=True)
    ]


Instruction = Annotated[str | None, about("for language models that rerank; other models refuse it")]
Variables = Annotated[dict[str, Any] | None, about("`instruction` only, which outranks the field of that name")]
QueryTokens = Annotated[Count | None, about("a longer query is truncated; 0 and null: no limit")]


# The number of results, in bodies that have no such field and share paths with others that have.
NoCount = Annotated[Any, refused("all results are shown", 0)]


class RerankFields(msgspec.Struct, kw_only=True):
    """vLLM's fields of rerankers, which the bodies of all products have here."""

    instruction: Instruction = None
    chat_template_kwargs: Variables = None
    max_tokens_per_query: QueryTokens = None


class HasRerankFields(Protocol):
    """RerankFields, or a body with another base that declares the same fields."""

    instruction: Instruction
    chat_template_kwargs: Variables
    max_tokens_per_query: QueryTokens


def with_fields(request: RerankRequest, body: HasRerankFields) -> RerankRequest:
    """`request` with these fields. Raises InvalidField for other variables of a template."""
    instruction = body.instruction
    variables = {name: value for name, value in (body.chat_template_kwargs or {}).items() if value is not None}
    if variables:
        instruction = variables.get("instruction")
        if len(variables) > 1 or not isinstance(instruction, str):
            raise InvalidField("{field} may contain a string `instruction` only.", field="chat_template_kwargs")
    max_query_tokens = agreed(
        max_query_tokens=request.max_query_tokens, max_tokens_per_query=body.max_tokens_per_query or None
    )
    return replace(request, instruction=instruction, max_query_tokens=max_query_tokens)


def as_object(text: str) -> dict[str, Any]:
    """A text in a response, for all these products but infinity."""
    return {"text": text}


def best_passages(result: RerankResult, top_n: int | None = None) -> list[tuple[int, np.float32]]:
    """The indices and scores of the passages, best first. top_n: the most results; None and 0 for all."""
    order: list[int] = best_first(result.scores, result.logits)[: top_n or None].tolist()
    return [(index, result.scores[index]) for index in order]


def best_labels(result: ClassifyResult, order: Order = best_first) -> list[list[tuple[str, np.float32]]]:
    """For each input its labels and their scores, best first."""
    logits = [None] * len(result.scores) if result.logits is None else result.logits
    return [
        [(result.labels[place], scores[place]) for place in order(scores, row)]
        for scores, row in zip(result.scores, logits, strict=True)
    ]


def ranked(
    result: RerankResult,
    passages: Sequence[T],
    top_n: int | None,
    *,
    document: Callable[[T], object] | None,
    text: bool = False,
) -> list[dict[str, Any]]:
    """The results, best first. top_n: the most results; None and 0 for all.

    document: makes the value of `document` from a passage; None leaves the key out. text: whether results have
    Semantic Explorer's `text`.
    """
    items = []
    for index, score in best_passages(result, top_n):
        item: dict[str, Any] = {"index": index, "relevance_score": score, "score": score}
        if text:
            item["text"] = passages[index]
        if document is not None:
            item["document"] = document(passages[index])
        items.append(item)
    return items
