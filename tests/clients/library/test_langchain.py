"""vectord.library.langchain in LangChain's own vector store and retriever."""

from __future__ import annotations

import pickle

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from tests.clients.texts import PASSAGES, QUERY, TEXTS, assert_same_vectors

from vectord.library.langchain import VectordEmbeddings, VectordReranker

FOUND = "a joyful human being"


async def test_embeds_documents_and_queries_with_their_prompts(embedder):
    """Blocking and asynchronously."""
    embeddings = VectordEmbeddings(embedder)
    documents, query = embedder.embed(TEXTS, prompt="passage: "), embedder.embed([QUERY], prompt="query: ")
    assert_same_vectors(embeddings.embed_documents(TEXTS), documents)
    assert_same_vectors(await embeddings.aembed_documents(TEXTS), documents)
    assert_same_vectors([embeddings.embed_query(QUERY)], query)
    assert_same_vectors([await embeddings.aembed_query(QUERY)], query)
    assert embeddings.embed_documents([]) == []


def test_options_apply_to_each_call(embedder):
    embeddings = VectordEmbeddings(embedder, prompt="", dimensions=64, force_dimensions=True)
    assert_same_vectors(embeddings.embed_documents(TEXTS), embedder.embed(TEXTS, dimensions=64, force_dimensions=True))
    with pytest.raises(TypeError, match="dimension_count"):
        VectordEmbeddings(embedder, dimension_count=3).embed_query("a")


async def test_a_vector_store_retrieves_and_a_reranker_reorders(embedder):
    """With the score in the metadata; the store's own documents are not modified."""
    store = InMemoryVectorStore(VectordEmbeddings(embedder))
    store.add_texts(TEXTS, metadatas=[{"number": i} for i in range(len(TEXTS))])
    reranker = VectordReranker(embedder, top_n=2)
    retriever = store.as_retriever(search_kwargs={"k": 4})
    chain = retriever | RunnableLambda(
        lambda found: reranker.compress_documents(found, FOUND),
        afunc=lambda found: reranker.acompress_documents(found, FOUND),
    )
    for found in (chain.invoke(FOUND), await chain.ainvoke(FOUND)):
        assert [document.page_content for document in found] == PASSAGES[:2]
        scores = [document.metadata["relevance_score"] for document in found]
        assert scores == sorted(scores, reverse=True)
        assert found[0].metadata["number"] == 0
    assert "relevance_score" not in store.similarity_search(FOUND, k=1)[0].metadata


def test_the_reranker_scores_as_the_embedder_does(embedder):
    documents = [Document(text) for text in PASSAGES]
    ranked = VectordReranker(embedder).compress_documents(documents, QUERY)
    expected = embedder.rerank(QUERY, PASSAGES)
    assert [document.page_content for document in ranked] == [one.document for one in expected]
    scores = [document.metadata["relevance_score"] for document in ranked]
    assert scores == pytest.approx([one.score for one in expected], abs=1e-3)
    assert VectordReranker(embedder).compress_documents([], QUERY) == []


def test_a_name_loads_the_model_once_and_both_can_be_pickled(embedder, folder):
    """All classes with the same model share an Embedder. Another process opens its own."""
    embeddings = pickle.loads(pickle.dumps(VectordEmbeddings(folder, prompt="")))
    assert embeddings.embedder is embedder
    assert_same_vectors([embeddings.embed_query(QUERY)], embedder.embed([QUERY]))
    reranker = pickle.loads(pickle.dumps(VectordReranker(folder, top_n=1)))
    assert len(reranker.compress_documents([Document(text) for text in PASSAGES], QUERY)) == 1
