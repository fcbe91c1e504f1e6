"""NVIDIA's clients for LangChain and LlamaIndex, which send to a microservice (NIM)."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings, NVIDIARerank
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.nvidia import NVIDIAEmbedding
from llama_index.postprocessor.nvidia_rerank import NVIDIARerank as LlamaIndexRerank
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors

RERANKER = "tiny-reranker"

pytestmark = pytest.mark.filterwarnings("ignore")  # of an unknown model and of a missing key


def embeddings(server: str, **options: object) -> NVIDIAEmbeddings:
    return NVIDIAEmbeddings(base_url=f"{server}/v1", model=MODEL, nvidia_api_key="none is needed", **options)


def test_documents_and_queries_are_embedded(server, own):
    """With `input_type` "passage" and "query", which the default model treats alike."""
    client = embeddings(server)
    assert_same_vectors(client.embed_documents(TEXTS), own.embed(TEXTS))
    assert_same_vectors([client.embed_query(QUERY)], own.embed([QUERY]))


def test_the_words_of_truncate_choose_the_end(server, own):
    long = "start " * 300 + "end " * 300
    cut = {side: embeddings(server, truncate=side).embed_query(long) for side in ("START", "END")}
    for side, direction in (("START", "left"), ("END", "right")):
        assert_same_vectors([cut[side]], own.embed([long], truncate=True, truncate_side=direction))
    with pytest.raises(Exception, match="256"):
        embeddings(server, truncate="NONE").embed_query(TOO_LONG)


def test_passages_are_ranked_by_their_logits(server, own):
    client = NVIDIARerank(base_url=f"{server}/v1", model=RERANKER, nvidia_api_key="none is needed", top_n=2)
    found = client.compress_documents([Document(page_content=text) for text in PASSAGES], QUERY)
    wanted = own.rank(QUERY, PASSAGES, model=RERANKER, scores="raw")[:2]
    assert [document.page_content for document in found] == [PASSAGES[index] for index, _ in wanted]
    scores = [document.metadata["relevance_score"] for document in found]
    assert scores == pytest.approx([score for _, score in wanted], abs=1e-3)


def test_llama_indexs_texts_are_embedded(server, own):
    """Without a model, the first one that the server lists."""
    client = NVIDIAEmbedding(base_url=f"{server}/v1", api_key="none is needed", truncate="END")
    assert client.model == MODEL
    assert_same_vectors(client.get_text_embedding_batch(TEXTS), own.embed(TEXTS))
    assert_same_vectors([client.get_query_embedding(TOO_LONG)], own.embed([TOO_LONG], truncate=True))


def test_llama_indexs_nodes_are_ranked(server, own):
    client = LlamaIndexRerank(base_url=f"{server}/v1", model=RERANKER, api_key="none is needed", top_n=3)
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in PASSAGES]
    found = client.postprocess_nodes(nodes, query_str=QUERY)
    wanted = own.rank(QUERY, PASSAGES, model=RERANKER, scores="raw")
    assert [node.node.get_content() for node in found] == [PASSAGES[index] for index, _ in wanted]
