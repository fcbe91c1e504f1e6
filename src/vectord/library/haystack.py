"""Haystack: components that embed a text or documents, and a ranker. `warm_up`, or the first run, loads the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as error:
    error.add_note("vectord.library.haystack needs: pip install haystack-ai")
    raise

from vectord.library.embedder import Embedder, Ranked

Source = Embedder | Mapping[str, Any] | str  # settings: of a stored component


class _Component:
    """The base of the components: loads the model on use, and is stored by its arguments."""

    def _keep(self, embedder: Source, options: Mapping[str, Any], **parameters: Any) -> None:
        """No __init__: `component` makes another class of each, in which super() fails."""
        self._embedder = embedder
        self._options = options
        self._parameters = parameters

    def warm_up(self) -> None:
        self._opened()

    def _opened(self) -> Embedder:
        self._embedder = opened = Embedder.shared(self._embedder)
        return opened

    def to_dict(self) -> dict[str, Any]:
        embedder = self._embedder.settings if isinstance(self._embedder, Embedder) else self._embedder
        return dict(default_to_dict(self, embedder=embedder, **self._parameters, **self._options))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        return default_from_dict(cls, data)


@component
class VectordTextEmbedder(_Component):
    """The vector of a query."""

    def __init__(self, embedder: Source, **options: Any) -> None:
        """embedder: an Embedder or a model. options: of `Embedder.embed`."""
        self._keep(embedder, options)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": self._opened().embed(text, **{"kind": "query", **self._options}).tolist()}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, Any]:
        return {"embedding": (await self._opened().aembed(text, **{"kind": "query", **self._options})).tolist()}


@component
class VectordDocumentEmbedder(_Component):
    """The documents with their vectors."""

    def __init__(
        self,
        embedder: Source,
        *,
        meta_fields_to_embed: Sequence[str] = (),
        embedding_separator: str = "\n",
        **options: Any,
    ) -> None:
        """embedder: an Embedder or a model. options: of `Embedder.embed`.

        meta_fields_to_embed: come before the content, separated by embedding_separator.
        """
        fields = list(meta_fields_to_embed)
        self._keep(embedder, options, meta_fields_to_embed=fields, embedding_separator=embedding_separator)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        texts = _texts(documents, **self._parameters)
        return _with_vectors(documents, self._opened().embed(texts, **{"kind": "document", **self._options}))

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, list[Document]]:
        texts = _texts(documents, **self._parameters)
        return _with_vectors(documents, await self._opened().aembed(texts, **{"kind": "document", **self._options}))


@component
class VectordRanker(_Component):
    """The best documents first, with their scores."""

    def __init__(
        self,
        embedder: Source,
        *,
        top_k: int | None = None,
        meta_fields_to_embed: Sequence[str] = (),
        embedding_separator: str = "\n",
        **options: Any,
    ) -> None:
        """top_k: how many documents to keep; None: all. options: of `Embedder.rerank`. The others: as above."""
        fields = list(meta_fields_to_embed)
        self._keep(embedder, options, top_k=top_k, meta_fields_to_embed=fields, embedding_separator=embedding_separator)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        texts, top_k = self._arguments(documents, top_k)
        return _ranked(documents, self._opened().rerank(query, texts, top_k=top_k, **self._options))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        texts, top_k = self._arguments(documents, top_k)
        return _ranked(documents, await self._opened().arerank(query, texts, top_k=top_k, **self._options))

    def _arguments(self, documents: list[Document], top_k: int | None) -> tuple[list[str], int | None]:
        texts = {name: value for name, value in self._parameters.items() if name != "top_k"}
        return _texts(documents, **texts), self._parameters["top_k"] if top_k is None else top_k


def _texts(documents: Sequence[Document], meta_fields_to_embed: Sequence[str], embedding_separator: str) -> list[str]:
    return [
        embedding_separator.join(
            [
                *(str(document.meta[name]) for name in meta_fields_to_embed if document.meta.get(name) is not None),
                document.content or "",
            ]
        )
        for document in documents
    ]


def _with_vectors(documents: Sequence[Document], vectors: Any) -> dict[str, list[Document]]:
    pairs = zip(documents, vectors.tolist(), strict=True)
    return {"documents": [replace(document, embedding=vector) for document, vector in pairs]}


def _ranked(documents: Sequence[Document], ranking: Sequence[Ranked]) -> dict[str, list[Document]]:
    return {"documents": [replace(documents[one.index], score=one.score) for one in ranking]}
