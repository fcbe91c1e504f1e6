"""Chroma: an embedding function, which a collection stores by its settings.

Import this module before a stored collection is opened, so that Chroma knows the function by its name.
"""

from __future__ import annotations

from typing import Any

try:
    from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
    from chromadb.utils.embedding_functions import register_embedding_function
except ModuleNotFoundError as error:
    error.add_note("vectord.library.chroma needs: pip install chromadb")
    raise

from vectord.library.embedder import Embedder


@register_embedding_function
class VectordEmbeddingFunction(EmbeddingFunction[Documents]):
    """The vectors of an Embedder or of a model, with its prompts for queries and documents."""

    def __init__(self, embedder: Embedder | dict[str, Any] | str, **options: Any) -> None:
        """options: of `Embedder.embed`."""
        self._embedder = Embedder.shared(embedder)
        self._options = options

    def __call__(self, input: Documents) -> Embeddings:
        return list(self._embedder.embed(input, **{"kind": "document", **self._options}))

    def embed_query(self, input: Documents) -> Embeddings:
        return list(self._embedder.embed(input, **{"kind": "query", **self._options}))

    @staticmethod
    def name() -> str:
        return "vectord"

    def default_space(self) -> Space:
        return "cosine"

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> VectordEmbeddingFunction:
        return VectordEmbeddingFunction(config["embedder"], **config["options"])

    def get_config(self) -> dict[str, Any]:
        return {"embedder": self._embedder.settings, "options": self._options}
