"""A short hash of everything that determines a model's outputs: `fingerprint(spec)`.

reader.py calls it once for each model, at start. Only outputs with equal fingerprints may be compared, or share a cache
entry. The fingerprint does not depend on where the files were found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from vectord.checkpoints.spec import ModelSpec
from vectord.errors import ModelUnavailable

SAMPLES = 32
SAMPLE_BYTES = 64 * 2**10

# Left out, because they do not change the outputs: names and paths, facts from the catalogue, keys without effect.
_NAMES = frozenset(
    {"model_id", "revision", "folder", "fingerprint", "default_prompt_name", "default_adapter", "chat_template"}
    | {"others", "truncate_dim"}
)
# Hashed even without a value. All others are hashed only if they have one, so a new fact changes no old fingerprint.
_ALWAYS = frozenset(
    {"colbert", "dense_modules", "document_length", "handler", "in_features", "labels", "lexical", "linear"}
    | {"max_characters", "pooling", "query_length", "side", "skiplist_words", "tasks", "token_ids", "token_labels"}
    | {"unknown_id", "weights", "yes_no"}
)
_CATALOGUE = frozenset({"matryoshka", "known_cosines"})
_IDLE_CONFIG = frozenset({"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"})


def fingerprint(spec: ModelSpec) -> str:
    """Return 16 hex digits: a hash of the facts in `spec`, and of the size and samples of each file.

    Samples of 2 MB distinguish checkpoints that were trained separately; reading whole files would take seconds.
    """
    digest = hashlib.sha256(_facts(spec))
    for path in files_of(spec):
        try:
            _sample(digest, path)
        except OSError as error:
            raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()[:16]


def changed(spec: ModelSpec, **facts: Any) -> ModelSpec:
    """Return the model with these facts changed, and with the fingerprint of its new vector space."""
    spec = replace(spec, known_cosines=(), **facts)
    return replace(spec, fingerprint=fingerprint(spec))


def _facts(spec: ModelSpec) -> bytes:
    try:
        facts = {name: value for name, value in _set_facts(spec).items() if name not in _NAMES | _CATALOGUE}
        if spec.query is not None:
            facts["query"] = spec.query.fingerprint
        if spec.images is not None:
            facts["images"] = spec.images.fingerprint
        facts["config"] = {key: value for key, value in spec.config.items() if key not in _IDLE_CONFIG}
        return json.dumps(facts, sort_keys=True, default=_plain).encode()
    except RecursionError:  # json.dumps allows fewer levels than the parser
        raise ModelUnavailable(f"{spec.folder}: config.json is nested too deeply") from None


def _set_facts(value: msgspec.Struct) -> dict[str, Any]:
    """Without `Colbert.library`, because rules for texts are not part of a vector space, and `Adapter.base`, a name."""
    fields = {name: value for name, value in asdict(value).items() if name not in ("library", "base")}
    return {name: value for name, value in fields.items() if name in _ALWAYS or value not in (None, ())}


def _plain(value: object) -> object:
    """JSON for a struct and a frozenset, and null for a path, because only the content of a file counts."""
    if isinstance(value, msgspec.Struct):
        return _set_facts(value)
    return sorted(value) if isinstance(value, frozenset) else None


def files_of(spec: ModelSpec) -> Iterator[Path]:
    """Yield the weights and the tokenizer, in the order of the fingerprint; not those of `query`."""
    yield from spec.weights
    yield spec.tokenizer
    settings = spec.tokenizer.with_name("tokenizer_config.json")  # tokenizer.json contains them, vocab.txt does not
    if spec.tokenizer.suffix == ".txt" and settings.is_file():
        yield settings
    yield from (module.weights for module in spec.dense_modules if module.weights is not None)
    adapters = spec.adapters if spec.merged is None else (*spec.adapters, spec.merged)
    yield from (adapter.weights for adapter in adapters if adapter.weights is not None)
    yield from (path for path in (spec.lexical, spec.query_weights) if path is not None)
    if spec.colbert is not None:
        yield from (module.weights for module in spec.colbert.dense_modules)
        if spec.colbert.linear is not None:
            yield spec.colbert.linear


def _sample(digest: hashlib._Hash, path: Path) -> None:
    """Hash the file's size and SAMPLES evenly spaced parts from its start to its end; all bytes of a small file."""
    with path.open("rb", buffering=0) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        digest.update(size_bytes.to_bytes(8, "little"))
        if size_bytes <= SAMPLES * SAMPLE_BYTES:
            digest.update(file.read())
            return
        for i in range(SAMPLES):
            file.seek((size_bytes - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
