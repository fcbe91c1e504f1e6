"""vectord.library.llama_index in LlamaIndex's own index, query engine and ingestion pipeline."""

from __future__ import annotations

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from tests.clients.texts import PASSAGES, QUERY, TEXTS, assert_same_vectors

from vectord.library.llama_index import VectordEmbedding, VectordRerank

FOUND = "a joyful human being"
SHORT = {"dimensions": 64, "force_dimensions": True, "prompt": ""}


def nodes(texts: list[str]) -> list[TextNode]:
    return [TextNode(text=text, id_=str(i)) for i, text in enumerate(texts)]


def scored(texts: list[str]) -> list[NodeWithScore]:
    return [NodeWithScore(node=node) for node in nodes(texts)]


async def test_embeds_texts_and_queries_with_their_prompts(embedder):
    """One, several, blocking and asynchronously."""
    embedding = VectordEmbedding(embedder)
    documents, query = embedder.embed(TEXTS, prompt="passage: "), embedder.embed([QUERY], prompt="query: ")
    assert_same_vectors(embedding.get_text_embedding_batch(TEXTS), documents)
    assert_same_vectors(await embedding.aget_text_embedding_batch(TEXTS), documents)
    assert_same_vectors([embedding.get_text_embedding(TEXTS[0])], documents[:1])
    assert_same_vectors([await embedding.aget_text_embedding(TEXTS[0])], documents[:1])
    assert_same_vectors([embedding.get_query_embedding(QUERY)], query)
    assert_same_vectors([await embedding.aget_query_embedding(QUERY)], query)


async def test_an_index_retrieves_and_a_reranker_reorders(embedder):
    index = VectorStoreIndex(nodes(TEXTS), embed_model=VectordEmbedding(embedder))
    retriever = index.as_retriever(similarity_top_k=4)
    rerank = VectordRerank(embedder, top_n=2)
    for found in (retriever.retrieve(FOUND), await retriever.aretrieve(FOUND)):
        assert found[0].text == PASSAGES[0]
        for ranked in (
            rerank.postprocess_nodes(found, query_str=FOUND),
            await rerank.apostprocess_nodes(found, query_bundle=QueryBundle(FOUND)),
        ):
            assert [node.text for node in ranked] == PASSAGES[:2]
            assert ranked[0].score > ranked[1].score


def test_the_reranker_scores_as_the_embedder_does(embedder):
    ranked = VectordRerank(embedder).postprocess_nodes(scored(PASSAGES), query_str=QUERY)
    expected = embedder.rerank(QUERY, PASSAGES)
    assert [node.text for node in ranked] == [one.document for one in expected]
    assert [node.score for node in ranked] == pytest.approx([one.score for one in expected], abs=1e-3)
    assert VectordRerank(embedder).postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(ValueError, match="needs the query"):
        VectordRerank(embedder).postprocess_nodes(scored(PASSAGES))


def test_a_stored_one_makes_the_same_vectors(embedder):
    """As LlamaIndex stores components: fields of its base class, and options of the call."""
    embedding = VectordEmbedding(embedder, SHORT, embed_batch_size=3)
    again = VectordEmbedding.from_json(embedding.to_json())
    assert (again.embed_batch_size, again.model_name) == (3, embedder.settings["models"][0])
    expected = embedder.embed(TEXTS, dimensions=64, force_dimensions=True)
    assert_same_vectors(again.get_text_embedding_batch(TEXTS), expected)
    rerank = VectordRerank.from_json(VectordRerank(embedder, top_n=1).to_json())
    assert len(rerank.postprocess_nodes(scored(PASSAGES), query_str=QUERY)) == 1


def test_the_cache_of_a_pipeline_knows_other_options(embedder, monkeypatch):
    """Equal settings hit it; another prompt does not."""
    pipeline = IngestionPipeline(transformations=[VectordEmbedding(embedder)])
    first = pipeline.run(nodes=nodes(PASSAGES))
    with monkeypatch.context() as patch:
        patch.setattr(type(embedder), "embed", None)  # not called
        pipeline.transformations = [VectordEmbedding(embedder)]
        assert [node.embedding for node in pipeline.run(nodes=nodes(PASSAGES))] == [node.embedding for node in first]
    pipeline.transformations = [VectordEmbedding(embedder, {"prompt": "other: "})]
    assert pipeline.run(nodes=nodes(PASSAGES))[0].embedding != first[0].embedding
