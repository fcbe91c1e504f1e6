"""Names of other servers that are accepted and do nothing here, each with the reason.

sources.py says once at start which of them are set; docs/configuration.md lists them all. A name that is not here, no
setting's and without VECTORD_ before it is a stranger's, and nobody looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vectord.config.settings import option


@dataclass(frozen=True, slots=True)
class Ignored:
    names: tuple[str, ...]  # in the environment; each is an option too, as a setting's names are
    why: str
    switch: bool = False  # whether the option may stand without a value


IGNORED: tuple[Ignored, ...] = (
    Ignored(("UDS_PATH",), "It is the socket between TEI and its Python backend; there is no second process here."),
    Ignored(
        ("API_WORKERS",),
        "One event loop serves HTTP, and the threads behind it are counted by num_threads and tokenization_workers.",
    ),
    Ignored(
        ("MAX_CONCURRENT",),
        "How many forwards run at once follows from num_threads; more of them on the same cores are slower.",
    ),
    Ignored(("INFINITY_REDIRECT_SLASH",), "`GET /` answers by itself; the API's page is at /docs."),
    Ignored(("HF_MODEL_CACHE_VOLUME",), "It names the volume of a compose file; the folder is hf_home."),
    Ignored(
        ("TRUST_REMOTE_CODE", "INFINITY_TRUST_REMOTE_CODE"),
        "Code of a model's repository is never run.",
        switch=True,
    ),
    Ignored(
        ("ENABLE_WARMUP", "INFINITY_MODEL_WARMUP"),
        "Every model answers a self-test before it is ready, which warms it up.",
        switch=True,
    ),
    Ignored(("WARMUP_BATCH_SIZE", "WARMUP_STEPS"), "As ENABLE_WARMUP."),
    Ignored(("INFINITY_ENGINE",), "Other words for other engines: see backend."),
    Ignored(
        ("INFINITY_COMPILE", "INFINITY_BETTERTRANSFORMER"),
        "Every network is compiled, or run on fused kernels, as its backend does best.",
        switch=True,
    ),
    Ignored(("INFINITY_VECTOR_DISK_CACHE",), "Vectors are cached in memory: see cache_bytes.", switch=True),
    Ignored(("INFINITY_EMBEDDING_DTYPE",), "A request says in which numbers it wants its vectors."),
    Ignored(("INFINITY_LENGTHS_VIA_TOKENIZE",), "Usage always counts the tokens that were run.", switch=True),
    Ignored(("INFINITY_PRELOAD_ONLY",), "`vectord models` looks for the files without serving them.", switch=True),
    Ignored(
        ("INFINITY_ONNX_DISABLE_OPTIMIZE", "INFINITY_ONNX_DO_NOT_PREFER_QUANTIZED"),
        "Which ONNX graph is run is said by backend, dtype and onnx_file.",
        switch=True,
    ),
    Ignored(("INFINITY_CALIBRATION_DATASET_URL",), "int8 vectors have one scale for all texts; nothing is fetched."),
    Ignored(("INFINITY_ANONYMOUS_USAGE_STATS", "DO_NOT_TRACK"), "Nothing is ever reported to anyone.", switch=True),
    Ignored(
        ("CUDA_ARENA_SIZE", "CUDA_ARENA_EXTEND_STRATEGY", "GPU_PRESSURE_THRESHOLD"),
        "ONNX Runtime's memory grows by what is needed, and is given back.",
    ),
    Ignored(
        ("MAX_RERANKING_BATCH_SIZE", "QWEN_RERANK_BATCH_SIZE"),
        "Pairs are batched like texts, by their tokens: see max_batch_tokens and max_batch_requests.",
    ),
    Ignored(
        ("INFINITY_QUEUE_SIZE", "INFERENCE_MAX_QUEUE_DEPTH"),
        "All requests have the same places: see max_concurrent_requests and max_queue_wait_s.",
    ),
    Ignored(
        ("MAX_SENTENCE_CHARS", "MAX_TOTAL_CHARS_PER_REQUEST", "MAX_RERANK_TEXT_CHARS", "MAX_RERANK_TOTAL_CHARS"),
        "Smart Embedder itself has dropped them; payload_limit bounds a body.",
    ),
)

BY_NAME: Mapping[str, Ignored] = {name: ignored for ignored in IGNORED for name in ignored.names}
BY_FLAG: Mapping[str, Ignored] = {option(name): ignored for name, ignored in BY_NAME.items()}
