"""Find a model that Ollama has downloaded: `find_blob("nomic-embed-text", environ)`.

hub.py calls it at start for the names `ollama:NAME`. Ollama keeps a manifest for each name, which lists the digests of
the files, and each file under its digest. Source: types/model/name.go and manifest/paths.go of Ollama.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.read import read_json_object
from vectord.errors import ModelUnavailable

PREFIX = "ollama:"
MANIFEST_LIMIT_BYTES = 2**20
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_NAME = re.compile(
    rf"(((?P<host>{_PART}(:\d{{1,5}})?)/)?(?P<namespace>{_PART})/)?(?P<model>{_PART})(:(?P<tag>{_PART}))?", re.ASCII
)
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def find_blob(name: str, environ: Mapping[str, str]) -> Path:
    """Return the GGUF file of the model that Ollama calls `name`: [[HOST/]NAMESPACE/]MODEL[:TAG]."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise ModelUnavailable(f"model {PREFIX}{name[:200]!r}: expected {PREFIX}MODEL or {PREFIX}MODEL:TAG")
    inside = Path(match["host"] or _HOST, match["namespace"] or _NAMESPACE, match["model"], match["tag"] or _TAG)
    # Counts under every profile, as HF_HOME does: it is where `ollama pull` of this machine has put the files.
    if environ.get("OLLAMA_MODELS"):
        folders = [Path(environ["OLLAMA_MODELS"]).expanduser()]
    else:  # the user's, and that of the service that Ollama's installer makes
        home = Path(environ.get("HOME") or Path.home())
        folders = [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    folder = next((folder for folder in folders if _is_file(folder / "manifests" / inside)), None)
    if folder is None:
        places = " or ".join(str(folder / "manifests" / inside) for folder in folders)
        raise ModelUnavailable(
            f"model {PREFIX}{name}: no {places}; download it with `ollama pull {name}`, or set OLLAMA_MODELS to the "
            "folder of Ollama's models"
        )
    manifest = folder / "manifests" / inside
    layers = read_json_object(manifest, limit_bytes=MANIFEST_LIMIT_BYTES).get("layers")
    digests: dict[str, list[str]] = {}
    for layer in layers if isinstance(layers, list) else ():
        match layer:
            case {"mediaType": str(kind), "digest": str(digest)} if _DIGEST.fullmatch(digest):
                digests.setdefault(kind, []).append(digest)
            case _:
                raise ModelUnavailable(f"{manifest}: a layer without mediaType or digest")
    if _ADAPTER in digests:
        raise ModelUnavailable(f"{manifest}: the model has an adapter, which is not supported")
    if len(digests.get(_MODEL, ())) != 1:
        raise ModelUnavailable(f"{manifest}: expected one layer {_MODEL}; found {len(digests.get(_MODEL, ()))}")
    blob = folder / "blobs" / digests[_MODEL][0].replace(":", "-")
    if not _is_file(blob):
        raise ModelUnavailable(f"{blob}: missing, though {manifest} names it; repeat `ollama pull {name}`")
    if not is_gguf(blob):
        raise ModelUnavailable(f"{blob}: not a GGUF file")
    return blob


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the folder of another user
        return False
