"""`python -m tests.real.golden`: writes the stored vectors of `vectord doctor`, by sentence-transformers in float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer
from tests.real import weights

from vectord.tools.doctor.references import GOLDEN, GOLDEN_TEXTS

FOLDERS = {
    "sentence-transformers/all-MiniLM-L6-v2": weights.minilm,
    "sentence-transformers/all-mpnet-base-v2": weights.mpnet,
}


def encode(hub_id: str) -> npt.NDArray[np.float32]:
    """The golden texts by the reference library: (texts, D)."""
    model = SentenceTransformer(str(FOLDERS[hub_id]()), device="cpu", model_kwargs={"dtype": "float32"})
    return np.asarray(model.encode(list(GOLDEN_TEXTS), normalize_embeddings=True), np.float32)


if __name__ == "__main__":
    np.savez(GOLDEN, **{hub_id: encode(hub_id) for hub_id in FOLDERS})
