"""Who may import whom: the contracts of pyproject.toml hold, and each of them can be broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINT = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(no_cache=True))"

# A line that may not stand in that file -> the contract that says so.
BREACHES: Mapping[tuple[str, str], str] = {
    ("schema.py", "import vectord.engine.client"): "Each layer imports only from the layers below it",
    ("compute/ops/base.py", "import vectord.engine.client"): "Each layer imports only from the layers below it",
    ("server/http/app.py", "import vectord.engine.engine"): "The server uses the engine through its client",
    ("server/http/app.py", "import vectord.text.tokenizer"): "The server uses the engine through its client",
    ("products/weaviate.py", "import vectord.engine.client"): "Products import the schema, the errors and the events",
    ("products/common/dialect.py", "import vectord.config"): "Products import the schema, the errors and the events",
    ("compose.py", "import vectord.products.tei"): "Nothing imports a single product but the gRPC service",
    ("engine/queue/worker.py", "import vectord.compute.backends.openvino"): "The queue and the operations use backends",
    ("compute/networks/bert.py", "import vectord.compute.ops.torch"): "Networks use the interface of the ops",
    ("engine/client.py", "import starlette"): "Only the server imports HTTP",
    ("engine/queue/worker.py", "import openvino"): "openvino is imported in one op set and one backend",
    ("compose.py", "import transformers"): "torch is imported in one op set and two backends",
    ("server/http/app.py", "import opentelemetry"): "opentelemetry is imported in observability",
    ("products/weaviate.py", "import pyarrow"): "grpc, pyarrow, httpx and others are each imported in",
    ("compose.py", "import grpc"): "grpc, pyarrow, httpx and others are each imported in",
    ("compose.py", "import redis"): "redis is imported by the rate limits",
    ("library/embedder.py", "import chromadb"): "Each framework is imported in one file of the library",
    ("compose.py", "import ray"): "ray is imported in one module",
    ("cli/main.py", "import huggingface_hub"): "Model files and tokenizers are read in checkpoints",
}


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the package below `source` against the contracts of this repository."""
    environ = os.environ | {"PYTHONPATH": str(source)}
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=ROOT, env=environ, text=True, capture_output=True, check=False, timeout=60
    )


def broken(report: str) -> list[str]:
    return [line.split(" BROKEN")[0] for line in report.splitlines() if " BROKEN" in line]


def test_every_contract_is_kept() -> None:
    """Imports point down."""
    result = lint(ROOT / "src")
    assert (broken(result.stdout), result.returncode) == ([], 0), result.stdout + result.stderr


@pytest.mark.parametrize(("breach", "contract"), BREACHES.items(), ids=lambda value: str(value[0])[:30])
def test_a_breach_is_seen(tmp_path: Path, breach: tuple[str, str], contract: str) -> None:
    """A single import in the wrong place breaks the contract that forbids it."""
    file, line = breach
    copy = shutil.copytree(ROOT / "src" / "vectord", tmp_path / "vectord", ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / file
    module.write_text(module.read_text("utf-8") + f"\n{line}\n")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(name.startswith(contract) for name in broken(result.stdout)), result.stdout


def test_a_new_module_must_be_given_a_layer(tmp_path: Path) -> None:
    """The list of layers is complete: a module outside it is an error."""
    copy = shutil.copytree(ROOT / "src" / "vectord", tmp_path / "vectord", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "newcomer.py").write_text("")
    result = lint(tmp_path)
    assert result.returncode == 1
    assert "newcomer" in result.stdout
