"""A short hash of what makes a model's vector space, the same wherever the same model's files come from.

spec.py asks once a model, at start. Vectors may be compared, and cached, only under equal fingerprints.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

SAMPLES = 32
SAMPLE_BYTES = 64 * 2**10


def fingerprint(files: Iterable[Path], facts: Mapping[str, object]) -> str:
    """16 hex digits over `facts` (JSON values) and over each file's size and samples of its bytes.

    Two checkpoints of one shape that agree in all of 2 MB spread over a file have not been trained apart; reading
    whole files would cost seconds for gigabytes. The names and places of the files do not count.
    """
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in files:
        _sample(digest, path)
    return digest.hexdigest()[:16]


def _sample(digest: hashlib._Hash, path: Path) -> None:
    """The start of the file (a safetensors header), its end, and places evenly between; all of a small file."""
    with path.open("rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        digest.update(size_bytes.to_bytes(8, "little"))
        if size_bytes <= SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
            return
        for i in range(SAMPLES):
            file.seek((size_bytes - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
