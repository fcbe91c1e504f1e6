"""Reranked documents as Cohere, Jina, infinity, vLLM and Semantic Explorer read and write them.

These products share a path, and their bodies may be alike. So each result has every key that one of their clients
reads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import asdict

from vectord.errors import InvalidField
from vectord.products.common.body import Count
from vectord.products.common.chat import ContentPart
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import InputItem, TextItem, agreed
from vectord.schema import ClassifyResult, Float32, Item, RerankRequest, RerankResult, TextOptions, best_first, item_of

Order: TypeAlias = Callable[[Float32, Float32 | None], Iterable[int]]  # scores, logits: (N,) -> N places

# --- bodies ---------------------------------------------------------------------------------------------------


class ContentItem(msgspec.Struct):
    """Texts and images, in order, as one item. Texts alone are joined by newlines."""

    content: Annotated[list[ContentPart], msgspec.Meta(min_length=1)]

    def read(self, field: str, index: int | None = None) -> Item:
        return item_of([part.read(field, index) for part in self.content])


class DocumentItem(InputItem):
    """A text or an image in an object, or both in parts, as in ContentItem."""

    content: Annotated[list[ContentPart], msgspec.Meta(min_length=1)] | None = None

    def read_item(self, field: str, index: int | None = None) -> Item:
        if self.content is not None:
            return ContentItem(self.content).read(field, index)
        return super().read_item(field, index)

    def shown(self, item: Item) -> dict[str, Any]:
        """The document in a response, for all these products but infinity. item: what was read of it."""
        if isinstance(item, str) and self.content is None:
            return as_object(item)
        given = {"text": None, **_given(self)}
        return given if self.content is None else {"text": None, "multi_modal": [_given(part) for part in self.content]}


def _given(item: msgspec.Struct) -> dict[str, Any]:
    return {key: value for key, value in asdict(item).items() if value is not None}


Query: TypeAlias = str | ContentItem
Documents: TypeAlias = list[str | DocumentItem]

EXAMPLE: Mapping[str, Any] = {
    "query": "What is the capital of France?",
    "documents": ["Paris is the capital of France.", "Cats sleep most of the day."],
}


def read_query(query: Query) -> Item:
    return query if isinstance(query, str) else query.read("query")


def read_documents(documents: Documents) -> list[Item]:
    """Raises InvalidField for a document that is neither text nor image."""
    return [one if isinstance(one, str) else one.read_item("passages", i) for i, one in enumerate(documents)]


def read_texts(documents: Sequence[str | TextItem]) -> list[str]:
    """Raises InvalidField for a document that is not a text alone."""
    return [one if isinstance(one, str) else one.read("passages", i) for i, one in enumerate(documents)]


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


def rerank_request(
    body: HasRerankFields,
    query: Item,
    passages: Sequence[Item],
    model: str | None,
    text: TextOptions,
    *,
    raw: bool | None = False,
    max_passage_tokens: int | None = None,
    max_query_tokens: int | None = None,
) -> RerankRequest:
    """A request with the shared fields of `body`. Raises InvalidField for other variables of a template."""
    instruction = body.instruction
    variables = {name: value for name, value in (body.chat_template_kwargs or {}).items() if value is not None}
    if variables:
        instruction = variables.get("instruction")
        if len(variables) > 1 or not isinstance(instruction, str):
            raise InvalidField("{field} may contain a string `instruction` only.", field="chat_template_kwargs")
    return RerankRequest(
        query=query,
        passages=passages,
        model=model or None,
        text=text,
        raw=raw,
        instruction=instruction,
        max_passage_tokens=max_passage_tokens,
        max_query_tokens=agreed(
            max_query_tokens=max_query_tokens, max_tokens_per_query=body.max_tokens_per_query or None
        ),
    )


# --- responses ------------------------------------------------------------------------------------------------


class TextDocument(msgspec.Struct):
    text: str


class ShownDocument(msgspec.Struct):
    """`text` is null if it has an image; the rest is as it was sent."""

    text: str | None
    multi_modal: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET  # its `content`
    image: str | msgspec.UnsetType = msgspec.UNSET


class RankedItem(msgspec.Struct):
    """An item of `ranked` with SCORES. Products add `text` and `document` as they have them."""

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


SCORES = ("relevance_score", "score")


def shown_documents(documents: Documents, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Each document in a response. items: what `read_documents` made of them."""
    return [
        as_object(one) if isinstance(one, str) else one.shown(item) for one, item in zip(documents, items, strict=True)
    ]


def as_object(text: str) -> dict[str, Any]:
    """A text in a response, for all these products but infinity."""
    return {"text": text}


def ranked(
    result: RerankResult, top_n: int | None, *scores: str, **columns: Sequence[Any] | Float32 | None
) -> list[dict[str, Any]]:
    """The results, best first: `index`, the score under each key of `scores`, and the passage's value of each column.

    top_n: the most results; None and 0 for all. columns: a value for each passage in order; None leaves the key out.
    """
    order: list[int] = best_first(result.scores, result.logits)[: top_n or None].tolist()
    given = {key: values for key, values in columns.items() if values is not None}
    return [
        {"index": index, **dict.fromkeys(scores, result.scores[index])}
        | {key: values[index] for key, values in given.items()}
        for index in order
    ]


def best_labels(result: ClassifyResult, order: Order = best_first) -> list[list[tuple[str, np.float32]]]:
    """For each input its labels and their scores, best first."""
    logits = [None] * len(result.scores) if result.logits is None else result.logits
    return [
        [(result.labels[place], scores[place]) for place in order(scores, row)]
        for scores, row in zip(result.scores, logits, strict=True)
    ]
