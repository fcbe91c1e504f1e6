"""LlamaIndex: an embedding model for its indexes, and a reranker for their results, both stored by their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ModuleNotFoundError as error:
    error.add_note("vectord.library.llama_index needs: pip install llama-index-core")
    raise

from vectord.library.embedder import Embedder, Ranked

BATCH_TEXTS = 256  # instead of LlamaIndex's 10: the engine makes its own batches


class VectordEmbedding(BaseEmbedding):
    """The vectors of an Embedder or of a model, with its prompts for queries and documents."""

    embedder: dict[str, Any] = Field(description="Settings of the Embedder.")
    options: dict[str, Any] = Field(description="Options of `Embedder.embed`.")
    _embedder: Embedder = PrivateAttr()

    def __init__(
        self, embedder: Embedder | Mapping[str, Any] | str, options: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:
        """options: of `Embedder.embed`. fields: of LlamaIndex's BaseEmbedding."""
        opened = Embedder.shared(embedder)
        defaults = {"model_name": opened.settings["models"][0], "embed_batch_size": BATCH_TEXTS}
        super().__init__(embedder=opened.settings, options=dict(options or {}), **{**defaults, **fields})
        self._embedder = opened

    @classmethod
    def class_name(cls) -> str:
        return "VectordEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embedder.embed(query, **{"kind": "query", **self.options}).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._embedder.aembed(query, **{"kind": "query", **self.options})).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embedder.embed(texts, **{"kind": "document", **self.options}).tolist()

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return (await self._embedder.aembed(texts, **{"kind": "document", **self.options})).tolist()


class VectordRerank(BaseNodePostprocessor):
    """The best nodes first, with their scores."""

    embedder: dict[str, Any] = Field(description="Settings of the Embedder.")
    options: dict[str, Any] = Field(description="Options of `Embedder.rerank`.")
    top_n: int | None = Field(description="How many nodes to keep; None: all.")
    _embedder: Embedder = PrivateAttr()

    def __init__(
        self,
        embedder: Embedder | Mapping[str, Any] | str,
        options: Mapping[str, Any] | None = None,
        *,
        top_n: int | None = None,
        **fields: Any,
    ) -> None:
        """top_n: how many nodes to keep; None: all. options: of `Embedder.rerank`."""
        opened = Embedder.shared(embedder)
        super().__init__(embedder=opened.settings, options=dict(options or {}), top_n=top_n, **fields)
        self._embedder = opened

    @classmethod
    def class_name(cls) -> str:
        return "VectordRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, texts = _query(query_bundle), _texts(nodes)
        return _scored(nodes, self._embedder.rerank(query, texts, **{"top_k": self.top_n, **self.options}))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, texts = _query(query_bundle), _texts(nodes)
        return _scored(nodes, await self._embedder.arerank(query, texts, **{"top_k": self.top_n, **self.options}))


def _query(query_bundle: QueryBundle | None) -> str:
    if query_bundle is None:
        raise ValueError("VectordRerank needs the query: set query_bundle or query_str")
    return str(query_bundle.query_str)


def _texts(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def _scored(nodes: list[NodeWithScore], ranking: list[Ranked]) -> list[NodeWithScore]:
    return [NodeWithScore(node=nodes[one.index].node, score=one.score) for one in ranking]
