"""A short hash of what makes a model's answers, the same wherever the same model's files come from.

reader.py asks once a model, at start. Answers may be compared, and cached, only under equal fingerprints.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from vectord.checkpoints.spec import DenseModule, ModelSpec
from vectord.errors import ModelUnavailable

SAMPLES = 32
SAMPLE_BYTES = 64 * 2**10

# Where a model lies, what it is called, what others know of it, and what of config.json changes without the model.
_NAMES = frozenset({"model_id", "revision", "folder", "fingerprint", "default_prompt_name"})
_HEARSAY = frozenset({"matryoshka", "known_cosines"})
_IDLE_CONFIG = frozenset({"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"})


def fingerprint(spec: ModelSpec) -> str:
    """16 hex digits over all facts of `spec` but names and places, and over each file's size and samples of its bytes.

    Two checkpoints of one shape that agree in all of 2 MB spread over a file have not been trained apart; reading
    whole files would cost seconds for gigabytes. Raises ModelUnavailable, naming the file: unreadable, nested too deep.
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
        facts = {name: value for name, value in asdict(spec).items() if name not in _NAMES | _HEARSAY}
        facts["config"] = {key: value for key, value in spec.config.items() if key not in _IDLE_CONFIG}
        return json.dumps(facts, sort_keys=True, default=_plain).encode()
    except RecursionError:  # what can be parsed at one depth of calls need not be written at another
        raise ModelUnavailable(f"{spec.folder}: config.json is nested too deeply") from None


def _plain(value: object) -> object:
    """What is no JSON value as one. Paths do not count: the files they name do."""
    return sorted(value) if isinstance(value, frozenset) else None


def _files(spec: ModelSpec) -> Iterator[Path]:
    yield from spec.weights
    yield spec.tokenizer
    settings = spec.tokenizer.with_name("tokenizer_config.json")  # tokenizer.json holds all of them, vocab.txt none
    if spec.tokenizer.suffix == ".txt" and settings.is_file():
        yield settings
    yield from _weights_of(spec.dense_modules)
    if spec.lexical is not None:
        yield spec.lexical
    if spec.colbert is not None:
        yield from _weights_of(spec.colbert.dense_modules)
        if spec.colbert.linear is not None:
            yield spec.colbert.linear


def _weights_of(modules: tuple[DenseModule, ...]) -> Iterator[Path]:
    return (module.weights for module in modules)


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
