"""A real server with an untrusted model folder serves the model or exits with one line, and runs no code from it.

Each file reader has its own tests (tests/attack/README.md lists them); these tests run the whole process.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.opening import minilm_folder
from tests.real_server import running

ROOM_BYTES = 12 * 2**30  # of address space; a normal start uses a third of it
SECRET = "a-secret-of-the-operator"
MARK = "the-code-has-run"


class Payload:
    """Its pickle calls a shell."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def change(folder: Path, name: str, **entries: Any) -> None:
    path = folder / name
    fields = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**fields, **entries}))


def bare_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(folder / MARK)))


def zipped_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps(Payload(folder / MARK), protocol=2))


def zip_bomb(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", bytes(2**28))


def shard_elsewhere(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
        change(folder, "model.safetensors.index.json", weight_map={"embeddings": name.format(outside=folder.parent)})

    return spoil


def module_elsewhere(path: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        kind = "sentence_transformers.models.Transformer"
        (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": path, "type": kind}]))

    return spoil


def linked_to_secret(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        secret = folder.parent / "secret"
        secret.write_text(SECRET * 20)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)

    return spoil


def weights(data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").write_bytes(data) and None


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


def endless(name: str) -> Callable[[Path], None]:
    """An endless device instead of a file."""

    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("/dev/zero")
        (folder / "vocab.txt").unlink(missing_ok=True)  # which could replace tokenizer.json

    return spoil


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle that calls a shell": (bare_pickle, "pytorch_model.bin"),
    "such a pickle in torch's zip": (zipped_pickle, "pytorch_model.bin"),
    "a zip bomb": (zip_bomb, "compressed"),
    "a shard above the folder": (shard_elsewhere("../model.safetensors"), "weight_map may only name"),
    "a shard at an absolute path": (shard_elsewhere("{outside}/model.safetensors"), "weight_map may only name"),
    "a module above the folder": (module_elsewhere("../.."), "leads out of the folder"),
    "a module at an absolute path": (module_elsewhere("/etc"), "leads out of the folder"),
    "weights linked to a secret": (linked_to_secret("model.safetensors"), "model.safetensors"),
    "config.json linked to a secret": (linked_to_secret("config.json"), "config.json"),
    "tokenizer.json linked to a secret": (linked_to_secret("tokenizer.json"), "tokenizer.json"),
    "a tokenizer without end": (endless("tokenizer.json"), "no tokenizer.json"),
    "weights without end": (endless("model.safetensors"), "no model.safetensors"),
    "a header of 2**63 bytes": (weights(struct.pack("<Q", 2**63) + b"{}"), "the limit is"),
    "a header longer than its file": (weights(struct.pack("<Q", 99_999_999) + b"{}"), "cut off inside its header"),
    "weights cut off": (cut_off, "incomplete|cut off"),
    "weights of another shape": (lambda folder: change(folder, "config.json", hidden_size=768), "by config.json"),
    "more words than rows": (lambda folder: change(folder, "config.json", vocab_size=31_000), "by config.json"),
    "a billion layers": (lambda folder: change(folder, "config.json", num_hidden_layers=10**9), "."),
}


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES))


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_folder_stops_the_start_with_one_line(name: str, tmp_path: Path) -> None:
    """Exit code 1 or 2, the fault in the log, no traceback, no code run, and no file read outside the model."""
    spoil, says = REFUSED[name]
    folder = minilm_folder(tmp_path / "model")
    spoil(folder)
    command = [sys.executable, "-m", "vectord", "serve", str(folder), "--port", "0", "--offline"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=bounded)
    log = ran.stdout + ran.stderr
    assert ran.returncode in (1, 2), log
    assert "Traceback" not in log
    assert SECRET not in log
    assert not list(tmp_path.rglob(MARK))
    assert re.search(says, log), log


@pytest.mark.parametrize("options", [[], ["--profile", "vllm", "--trust-remote-code"]], ids=["plain", "vLLM's option"])
def test_code_in_a_model_folder_is_never_run(options: list[str], tmp_path: Path) -> None:
    """auto_map in every possible file names a module that would leave a trace; the model is served without it. vLLM's
    option has no effect."""
    folder = minilm_folder(tmp_path / "model")
    code = (
        f"from pathlib import Path\nPath({str(tmp_path / MARK)!r}).touch()\nclass Model: pass\nclass Tokenizer: pass\n"
    )
    for module in ("modeling_own.py", "tokenization_own.py", "sitecustomize.py", "__init__.py", "conftest.py"):
        (folder / module).write_text(code)
    change(folder, "config.json", auto_map={"AutoModel": "modeling_own.Model", "AutoConfig": "modeling_own.Model"})
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_own.Tokenizer", None]})
    with running(tmp_path / "log", str(folder), "--offline", *options):
        pass
    assert not (tmp_path / MARK).exists()
