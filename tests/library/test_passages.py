"""vectord.Embedder with a reranker that reads passages through a network of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.library.test_images import ask
from tests.t5gemma2 import Reference, write_t5gemma2

from vectord import Embedder
from vectord.errors import InputTooLong
from vectord.schema import RerankRequest, RerankResult, TextOptions

LONG = "many birds sing in the morning, " * 99  # beyond 1,024 tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_t5gemma2(tmp_path_factory.mktemp("kalm-reranker"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module", params=["openvino", "torch"])
def embedder(request: pytest.FixtureRequest, folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), backend=request.param, dtype="float32", offline=True, cache_bytes=2**20) as made:
        yield made


def test_scores_equal_the_script(embedder: Embedder, reference: Reference) -> None:
    """A passage is cut at 1,024 tokens; again, with the rows of the first time, and for another query."""
    passages = ["the lazy dog sleeps", "", LONG]
    assert len(reference.ids(LONG)[0]) > 1024
    for query in ("the quick fox", "the quick fox", "who sings?"):
        ranked = embedder.rerank(query, passages)
        expected = [reference.score(query, passage) for passage in passages]
        assert {one.index: one.score for one in ranked} == pytest.approx(dict(enumerate(expected)), abs=1e-4)


def test_an_instruction_replaces_the_models_own(embedder: Embedder, reference: Reference) -> None:
    (one,) = embedder.rerank("the fox", ["a lazy dog"], instruction="Find a dog.")
    assert one.score == pytest.approx(reference.score("the fox", "a lazy dog", "Find a dog."), abs=1e-4)


def test_a_query_that_fits_is_not_reported_as_cut(embedder: Embedder) -> None:
    """Alone, it may have more tokens than in the body of the template."""
    for query, is_cut in (("the quick fox", False), (LONG, True)):
        request = RerankRequest(query=query, passages=["a dog"], text=TextOptions(truncate=True))
        result = ask(embedder, request)
        assert isinstance(result, RerankResult) and result.query is not None
        assert result.query.truncated == is_cut == bool(result.usage.lengths.truncated)


def test_a_long_query_is_cut_at_its_end_or_refused(embedder: Embedder, reference: Reference) -> None:
    """Of the decoder's window of 512 tokens, the words around the query take some."""
    (one,) = embedder.rerank(LONG, ["a dog"])
    starts = (LONG[:stop] for stop in range(1500, 0, -1))
    kept = next(start for start in starts if len(reference.ids(reference.prompt(start))[0]) <= 512)
    assert one.score == pytest.approx(reference.score(kept, "a dog"), abs=1e-4)
    with pytest.raises(InputTooLong, match=r"query.* must have at most 512 tokens; got"):
        embedder.rerank(LONG, ["a dog"], truncate=False)
    with pytest.raises(InputTooLong, match=r"documents\[1\].* must have at most 1024 tokens; got"):
        embedder.rerank("a fox", ["a dog", LONG], truncate=False)
