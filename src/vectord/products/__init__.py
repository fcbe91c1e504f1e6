"""The products that vectord replaces, one folder each: routes, wire types, errors, metrics and profile.

No module outside this folder names a product. Products may import schema.py, errors.py, products/common/, the events of
the engine and, for their metrics, observability/. Read products/common/dialect.py first, then products/openai.

In the bodies of all products null is the same as absent, and unknown keys are ignored, except in vectord's own API.
Parsers run on the event loop, and in a thread for large bodies.

Modules with wire types have no `from __future__ import annotations`: msgspec would compile each annotation from its
text several times, 50 ms in all at each start.
"""

# The order in which they share paths. A profile puts its own product first.
ORDER = (
    "openai",
    "tei",
    "cohere",
    "voyage",  # before Jina, whose /rerank requires fewer keys
    "jina",
    "vllm",
    "infinity",
    "llamacpp",
    "ollama",
    "weaviate",
    "nvidia",
    "mixedbread",
    "google",
    "vectord",
    "semantic_explorer",
    "smart_embedder",
    "simple_inference_server",
    "embedding_server",
)
