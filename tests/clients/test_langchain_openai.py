"""langchain-openai, which sends token ids of OpenAI's vocabulary unless it is told not to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from tests.clients.own_api import OwnApi
from tests.clients.texts import MODEL, TEXTS, TOO_LONG, assert_same_vectors

LANGCHAIN_DEFAULT = "text-embedding-ada-002"
Connect = Callable[..., OpenAIEmbeddings]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, token_table: Path) -> Connect:
    """OpenAIEmbeddings at a server's URL; tiktoken finds its table here instead of fetching it."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(token_table.parent))
    return lambda url, **options: OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none is needed", **options)


@pytest.fixture(scope="session")
def reading_server(serve, token_table: Path) -> str:
    """A server that can read those ids, and knows the model by the name that LangChain gives when it is given none."""
    aliases = f"{LANGCHAIN_DEFAULT}={MODEL}"
    return serve(MODEL, "--foreign-token-table", str(token_table), "--model-aliases", aliases)


@pytest.mark.parametrize("options", [{}, {"model": MODEL}], ids=["LangChain's own model", "ours"])
def test_untouched_defaults_embed_the_texts(connect, reading_server, options):
    """The ids that it sends are read as the texts they stand for, whatever their script."""
    embeddings = connect(reading_server, **options)
    assert_same_vectors(embeddings.embed_documents(TEXTS), OwnApi(reading_server).embed(TEXTS))
    assert_same_vectors([embeddings.embed_query(TEXTS[4])], OwnApi(reading_server).embed(TEXTS[4:5]))


def test_an_empty_text_has_a_vector(connect, reading_server):
    """It has no ids: LangChain asks for that of "" in a request of its own."""
    vectors = connect(reading_server, model=MODEL).embed_documents(["", TEXTS[0]])
    assert_same_vectors(vectors, OwnApi(reading_server).embed(["", TEXTS[0]]))


def test_without_the_table_the_refusal_says_what_to_do(connect, server):
    """Ids of another vocabulary are never embedded as if they were the model's own."""
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as refused:
        connect(server, model=MODEL).embed_documents(TEXTS)
    assert refused.value.code == "foreign_token_ids"


def test_what_it_says_to_do_works(connect, server, own):
    """LangChain then sends texts."""
    embeddings = connect(server, model=MODEL, check_embedding_ctx_length=False)
    assert_same_vectors(embeddings.embed_documents(TEXTS), own.embed(TEXTS))


async def test_the_async_methods_get_the_same(connect, reading_server):
    """aembed_documents, in requests of three texts."""
    vectors = await connect(reading_server, model=MODEL, chunk_size=3).aembed_documents(TEXTS)
    assert_same_vectors(vectors, OwnApi(reading_server).embed(TEXTS))


def test_errors_are_those_of_openai(connect, reading_server):
    """An unknown model, and a text that is too long for this one though not for OpenAI's."""
    with pytest.raises(openai.NotFoundError):
        connect(reading_server, model="no-such-model").embed_query("x")
    with pytest.raises(openai.BadRequestError, match="at most 256 tokens"):
        connect(reading_server, model=MODEL).embed_query(TOO_LONG)
