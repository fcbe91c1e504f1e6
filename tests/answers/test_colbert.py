"""ColBERT rows and MaxSim scores equal pylate's, on tiny random models that pylate saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.answers.serving import serving
from tests.reference.ragged import unpack
from tests.reference.reference_models import write_colbert
from tests.reference.references import run_reference

from vectord.schema import EmbedRequest, RerankRequest, TextOptions

QUERIES = ["  the quick fox\n", "lazy dog " * 30]
DOCUMENTS = ["the quick, brown fox; jumps!", "birds " * 60 + "end.", "dog", " \n the \u2603 fox\u2003"]
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {"network": "bert"},
    "bert, expansion attended": {"network": "bert", "attend_to_expansion_tokens": True},
    "bert, no expansion": {"network": "bert", "do_query_expansion": False},
    "bert, a skiplist word outside the vocabulary": {"network": "bert", "skiplist_words": [".", "\u2744"]},
    "modernbert": {"network": "modernbert"},
}


@pytest.fixture(scope="module", params=SETTINGS.values(), ids=SETTINGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colbert(tmp_path_factory.mktemp("colbert"), query_length=32, document_length=40, **request.param)


@pytest.mark.parametrize("backend", ["openvino", "torch"])
async def test_rows_and_scores_equal_pylate(model: Path, backend: str) -> None:
    """Marker tokens, expansion, lengths and the skiplist, for queries and for documents."""
    want = run_reference("pylate_colbert", model, {"queries": QUERIES, "documents": DOCUMENTS})
    async with serving(model, backend=backend) as server:
        for kind, texts in (("query", QUERIES), ("document", DOCUMENTS)):
            options = TextOptions(kind=kind, truncate=True)  # type: ignore[arg-type]
            result = await server.ask(EmbedRequest(inputs=texts, outputs=frozenset({"colbert"}), text=options))
            name = "queries" if kind == "query" else "documents"
            for mine, theirs in zip(result.colbert, unpack(want, name), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-4)
        for i, query in enumerate(QUERIES):
            ranked = await server.ask(RerankRequest(query=query, passages=DOCUMENTS, text=TextOptions(truncate=True)))
            np.testing.assert_allclose(ranked.scores, want["scores"][i], atol=2e-3)
            assert ranked.kind == "maxsim"
