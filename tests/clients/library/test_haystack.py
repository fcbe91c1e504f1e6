"""vectord.library.haystack in Haystack's own pipelines."""

from __future__ import annotations

import pytest
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from tests.clients.texts import PASSAGES, QUERY, TEXTS, assert_same_vectors

from vectord.library.haystack import VectordDocumentEmbedder, VectordRanker, VectordTextEmbedder

DOCUMENTS = [Document(content=text, meta={"title": f"title {i}"}) for i, text in enumerate(TEXTS)]
FOUND = "a joyful human being"


async def test_embeds_documents_and_queries_with_their_prompts(embedder):
    """Blocking and asynchronously; the given documents are not modified."""
    documents, query = VectordDocumentEmbedder(embedder), VectordTextEmbedder(embedder)
    expected = embedder.embed(TEXTS, prompt="passage: ")
    for made in (documents.run(DOCUMENTS), await documents.run_async(DOCUMENTS)):
        assert_same_vectors([document.embedding for document in made["documents"]], expected)
        assert [document.id for document in made["documents"]] == [document.id for document in DOCUMENTS]
    expected = embedder.embed([QUERY], prompt="query: ")
    assert_same_vectors([query.run(QUERY)["embedding"]], expected)
    assert_same_vectors([(await query.run_async(QUERY))["embedding"]], expected)
    assert DOCUMENTS[0].embedding is None
    assert documents.run([]) == {"documents": []}


def test_embeds_fields_of_the_metadata(embedder):
    """Before the content; a document without the field has none."""
    made = VectordDocumentEmbedder(embedder, meta_fields_to_embed=["title", "author"], embedding_separator=" | ")
    (document,) = made.run(DOCUMENTS[:1])["documents"]
    expected = embedder.embed([f"title 0 | {TEXTS[0]}"], kind="document")
    assert_same_vectors([document.embedding], expected)


async def test_the_ranker_scores_as_the_embedder_does(embedder):
    """top_k of the call outranks that of the component."""
    ranker = VectordRanker(embedder, top_k=2)
    expected = embedder.rerank(QUERY, PASSAGES)
    documents = DOCUMENTS[: len(PASSAGES)]
    for ranked in (ranker.run(QUERY, documents)["documents"], (await ranker.run_async(QUERY, documents))["documents"]):
        assert [document.content for document in ranked] == [one.document for one in expected][:2]
        assert [document.score for document in ranked] == pytest.approx([one.score for one in expected][:2], abs=1e-3)
    assert len(ranker.run(QUERY, documents, top_k=1)["documents"]) == 1
    assert ranker.run(QUERY, []) == {"documents": []}


def test_a_stored_pipeline_finds_and_ranks(embedder, folder):
    """Embed, retrieve, rank, from YAML, which has the settings of an Embedder or a model's name."""
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(VectordDocumentEmbedder(embedder).run(DOCUMENTS)["documents"])
    pipeline = Pipeline()
    pipeline.add_component("embedder", VectordTextEmbedder(folder))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=4))
    pipeline.add_component("ranker", VectordRanker(embedder, top_k=2, truncate=True))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("retriever.documents", "ranker.documents")
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["vectord.library.haystack"])
    again.get_component("retriever").document_store = store
    found = again.run({"embedder": {"text": FOUND}, "ranker": {"query": FOUND}})["ranker"]["documents"]
    assert [document.content for document in found] == PASSAGES[:2]


def test_a_stored_component_has_its_parameters(embedder):
    """It loads the model by warm_up or on its first run, not before."""
    component = VectordDocumentEmbedder(embedder, meta_fields_to_embed=["title"], dimensions=64, force_dimensions=True)
    again = VectordDocumentEmbedder.from_dict(component.to_dict())
    assert not isinstance(again._embedder, type(embedder))
    again.warm_up()
    assert again.to_dict() == component.to_dict()
    (document,) = again.run(DOCUMENTS[:1])["documents"]
    assert len(document.embedding) == 64
