"""Tests of checkpoints/gguf/ollama.py: a model that Ollama has downloaded is found, and others give one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vectord.checkpoints.gguf.ollama import find_blob
from vectord.checkpoints.hub import resolve
from vectord.errors import ModelUnavailable

DIGEST = "sha256:" + "0a" * 32
MODEL = {"mediaType": "application/vnd.ollama.image.model", "digest": DIGEST, "size": 8}
LICENSE = {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "1b" * 32, "size": 8}


def download(folder: Path, place: str, *, layers: Any = (MODEL, LICENSE), blob: bytes | None = b"GGUF....") -> Path:
    """What `ollama pull` leaves in its folder of models."""
    manifest = folder / "manifests" / place
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (folder / "blobs").mkdir(exist_ok=True)
    path = folder / "blobs" / DIGEST.replace(":", "-")
    if blob is not None:
        path.write_bytes(blob)
    return path


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("nomic-embed-text", "registry.ollama.ai/library/nomic-embed-text/latest"),
        ("nomic-embed-text:v1.5", "registry.ollama.ai/library/nomic-embed-text/v1.5"),
        ("someone/embed", "registry.ollama.ai/someone/embed/latest"),
        ("hf.co/org/Model-GGUF:Q8_0", "hf.co/org/Model-GGUF/Q8_0"),
        ("localhost:5000/me/m", "localhost:5000/me/m/latest"),
    ],
)
def test_names_lead_to_the_blob_as_in_ollama(name: str, place: str, tmp_path: Path) -> None:
    """With and without tag, namespace and registry."""
    blob = download(tmp_path, place)
    assert find_blob(name, {"OLLAMA_MODELS": str(tmp_path)}) == blob


def test_without_the_variable_the_home_folder_is_searched(tmp_path: Path) -> None:
    """~/.ollama/models is Ollama's default."""
    blob = download(tmp_path / ".ollama/models", "registry.ollama.ai/library/m/latest")
    assert find_blob("m", {"HOME": str(tmp_path)}) == blob


def test_the_hub_resolves_the_prefix_and_keeps_ollamas_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of Ollama ask for the model by that name."""
    blob = download(tmp_path, "registry.ollama.ai/library/m/latest")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    located = resolve("ollama:m", offline=True)
    assert (located.folder, located.model_id) == (blob, "m")


ADAPTER = {"mediaType": "application/vnd.ollama.image.adapter", "digest": DIGEST}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an adapter": ({"layers": [MODEL, ADAPTER]}, "adapter, which is not supported"),
    "two models": ({"layers": [MODEL, MODEL]}, "expected one layer application/vnd.ollama.image.model; found 2"),
    "no model": ({"layers": [LICENSE]}, "found 0"),
    "no list": ({"layers": "x"}, "found 0"),
    "a digest that is a path": ({"layers": [{**MODEL, "digest": "sha256:../../etc/passwd"}]}, "without mediaType"),
    "no blob": ({"blob": None}, "missing, though"),
    "another format": ({"blob": b"PK.."}, "not a GGUF file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_download_gives_one_line(name: str, tmp_path: Path) -> None:
    """A manifest is untrusted: a digest never leads out of the folder of blobs."""
    options, why = REFUSED[name]
    download(tmp_path, "registry.ollama.ai/library/m/latest", **options)
    with pytest.raises(ModelUnavailable, match=why):
        find_blob("m", {"OLLAMA_MODELS": str(tmp_path)})


def test_a_model_that_is_not_downloaded_names_place_and_command(tmp_path: Path) -> None:
    """The way out is Ollama's own command."""
    with pytest.raises(ModelUnavailable, match="library/m/latest; download it with `ollama pull m`"):
        find_blob("m", {"OLLAMA_MODELS": str(tmp_path)})


@pytest.mark.parametrize("name", ["", "../m", "a/b/c/d", "m:", "/m", "m m", "a/../m", "x" * 100])
def test_names_of_another_form_are_refused(name: str, tmp_path: Path) -> None:
    """No name leads out of the folder of manifests."""
    with pytest.raises(ModelUnavailable, match="expected ollama:MODEL"):
        find_blob(name, {"OLLAMA_MODELS": str(tmp_path)})
