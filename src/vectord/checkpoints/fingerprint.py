"""A short hash of everything that determines a model's outputs, wherever its files come from: `fingerprint(spec)`.

reader.py calls it once a model, at start. Outputs may be compared and cached only under equal fingerprints.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable

SAMPLES = 32
SAMPLE_BYTES = 64 * 2**10

# Left out: names and places, the catalogue's knowledge about the model, and keys of config.json without effect.
_NAMES = frozenset({"model_id", "revision", "folder", "fingerprint", "default_prompt_name"})
# Facts added later: left out while empty, so that older fingerprints stay.
_LATER = frozenset({"log_twice", "query_weights", "static", "whole_numbers"})
_CATALOGUE = frozenset({"matryoshka", "known_cosines"})
_IDLE_CONFIG = frozenset({"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"})


def fingerprint(spec: ModelSpec) -> str:
    """Return 16 hex digits over the facts of `spec`, and over each file's size and samples of its bytes.

    Two checkpoints of one shape with equal samples of 2 MB have not been trained separately, and reading whole files
    would take seconds. Raises ModelUnavailable, naming the file: unreadable, or nested too deeply.
    """
    digest = hashlib.sha256(_facts(spec))
    for path in _files(spec):
        try:
            _sample(digest, path)
        except OSError as error:
            raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()[:16]


def _facts(spec: ModelSpec) -> bytes:
    try:
        facts = {name: value for name, value in asdict(spec).items() if name not in _NAMES | _CATALOGUE}
        facts = {name: value for name, value in facts.items() if name not in _LATER or value is not None}
        facts["config"] = {key: value for key, value in spec.config.items() if key not in _IDLE_CONFIG}
        return json.dumps(facts, sort_keys=True, default=_plain).encode()
    except RecursionError:  # a depth that could be parsed cannot always be written
        raise ModelUnavailable(f"{spec.folder}: config.json is nested too deeply") from None


def _plain(value: object) -> object:
    """A frozenset as a list, and None for a path: only the content of files counts."""
    return sorted(value) if isinstance(value, frozenset) else None


def _files(spec: ModelSpec) -> Iterator[Path]:
    yield from spec.weights
    yield spec.tokenizer
    settings = spec.tokenizer.with_name("tokenizer_config.json")  # tokenizer.json contains them, vocab.txt does not
    if spec.tokenizer.suffix == ".txt" and settings.is_file():
        yield settings
    yield from (module.weights for module in spec.dense_modules)
    yield from (path for path in (spec.lexical, spec.query_weights) if path is not None)
    if spec.colbert is not None:
        yield from (module.weights for module in spec.colbert.dense_modules)
        if spec.colbert.linear is not None:
            yield spec.colbert.linear


def _sample(digest: hashlib._Hash, path: Path) -> None:
    """The start of the file (a safetensors header), its end, and evenly spaced places between; all of a small file."""
    with path.open("rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        digest.update(size_bytes.to_bytes(8, "little"))
        if size_bytes <= SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
            return
        for i in range(SAMPLES):
            file.seek((size_bytes - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
