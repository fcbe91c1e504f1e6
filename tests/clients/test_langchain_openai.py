"""langchain-openai, which sends token ids of OpenAI's vocabulary cl100k_base by default."""

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
def aliased_server(serve) -> str:
    """A server that serves the model also by LangChain's default name."""
    return serve(MODEL, "--model-aliases", f"{LANGCHAIN_DEFAULT}={MODEL}")


@pytest.mark.parametrize("options", [{}, {"model": MODEL}], ids=["LangChain's own model", "ours"])
@pytest.mark.parametrize("sends", [{}, {"check_embedding_ctx_length": False}], ids=["token ids", "texts"])
def test_token_ids_and_texts_are_embedded(connect, aliased_server, sends, options):
    """Of any script, and the empty one. Ids, which LangChain sends without a setting, are read as their texts, with
    the extra vectord[cl100k] on the server."""
    embeddings = connect(aliased_server, **sends, **options)
    own = OwnApi(aliased_server)
    assert_same_vectors(embeddings.embed_documents(["", *TEXTS]), own.embed(["", *TEXTS]))
    assert_same_vectors([embeddings.embed_query(TEXTS[4])], own.embed(TEXTS[4:5]))


async def test_the_async_methods_return_the_same_vectors(connect, server, own):
    """aembed_documents, in requests of three texts."""
    embeddings = connect(server, model=MODEL, chunk_size=3, check_embedding_ctx_length=False)
    assert_same_vectors(await embeddings.aembed_documents(TEXTS), own.embed(TEXTS))


def test_errors_are_those_of_openai(connect, server):
    """An unknown model, and a text that is too long for this model though not for OpenAI's."""
    with pytest.raises(openai.NotFoundError):
        connect(server, model="no-such-model", check_embedding_ctx_length=False).embed_query("x")
    with pytest.raises(openai.BadRequestError, match="at most 256 tokens"):
        connect(server, model=MODEL, check_embedding_ctx_length=False).embed_query(TOO_LONG)
