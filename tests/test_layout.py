"""Products in one place: no module outside products/ names a product."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/vectord"

# Word boundaries exclude variables of other servers (INFINITY_MODEL_ID) and models (jina-embeddings-v2, voyage-4-nano).
NAMES = re.compile(
    r"\b(tei|text.embeddings.inference|smart.?embedder|semantic.?explorer|simple.?inference.?server|embedding.?server"
    r"|embedding.inference.api|infinity|vllm|llama\.?cpp|ollama|cohere|jina(?!-)|voyage(?!-\d)|openai|weaviate|mixedbread"
    r"|nvidia nim)\b",
    re.IGNORECASE,
)

ALLOWED: Mapping[str, str] = {
    "products": "the products",
    "cli/commands": "help texts show profiles and other servers as examples",
    "tools": "these ask other products' servers, each by its own API",
    "server/grpc": "the service's protocol is tei.v1",
    "checkpoints/catalogue.py": "makers of models",
    "checkpoints/gguf": "makers of files, and the folder that one of them keeps",
    "checkpoints/hub.py": "the same",
    "checkpoints/reader.py": "makers of models",
    "text": "makers of models, and the source of a number",
}


def test_no_product_is_named_outside_products() -> None:
    """Comments and messages count too: what a product does belongs to its folder."""
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not any(path.relative_to(SOURCE).is_relative_to(place) for place in ALLOWED)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if NAMES.search(line)
    ]
    assert found == []


def test_each_exception_is_used() -> None:
    """An exception without a name in it is removed."""
    for place in ALLOWED:
        path = SOURCE / place
        files = [path] if path.is_file() else path.rglob("*.py")
        assert any(NAMES.search(file.read_text("utf-8")) for file in files), place
