"""LangChain: embeddings for its vector stores, and a reranker for its retrievers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from pydantic import PrivateAttr
except ModuleNotFoundError as error:
    error.add_note("vectord.library.langchain needs: pip install langchain-core")
    raise

from vectord.library.embedder import Embedder, Ranked


class VectordEmbeddings(Embeddings):
    """The vectors of an Embedder or of a model, with its prompts for queries and documents."""

    def __init__(self, embedder: Embedder | str, **options: Any) -> None:
        """options: of `Embedder.embed`."""
        self.embedder = Embedder.shared(embedder)
        self.options = options

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embedder.embed(texts, **{"kind": "document", **self.options}).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embedder.embed(text, **{"kind": "query", **self.options}).tolist()

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return (await self.embedder.aembed(texts, **{"kind": "document", **self.options})).tolist()

    async def aembed_query(self, text: str) -> list[float]:
        return (await self.embedder.aembed(text, **{"kind": "query", **self.options})).tolist()


class VectordReranker(BaseDocumentCompressor):
    """The best documents first, with their scores as `relevance_score` in the metadata."""

    top_n: int | None = None
    _embedder: Embedder = PrivateAttr()
    _options: dict[str, Any] = PrivateAttr()

    def __init__(self, embedder: Embedder | str, *, top_n: int | None = None, **options: Any) -> None:
        """top_n: how many documents to keep; None: all. options: of `Embedder.rerank`."""
        super().__init__(top_n=top_n)
        self._embedder = Embedder.shared(embedder)
        self._options = {"top_k": top_n, **options}

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        return _scored(documents, self._embedder.rerank(query, _texts(documents), **self._options))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        return _scored(documents, await self._embedder.arerank(query, _texts(documents), **self._options))


def _texts(documents: Sequence[Document]) -> list[str]:
    return [document.page_content for document in documents]


def _scored(documents: Sequence[Document], ranking: Sequence[Ranked]) -> list[Document]:
    return [
        documents[one.index].model_copy(
            update={"metadata": {**documents[one.index].metadata, "relevance_score": one.score}}
        )
        for one in ranking
    ]
