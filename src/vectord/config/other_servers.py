"""Variables of other servers: how their values are read, and which ones have no effect here.

declared.py names the reader of each variable; sources.py and command_line.py call it. A reader turns another program's
value into the text that the setting accepts, or into None if it is not meant for this server. A reader never fails: it
passes on a text that it does not understand, and the setting rejects that. docs/configuration.md quotes the docstrings.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

TRUE = frozenset({"true", "t", "1", "yes", "y", "on"})
FALSE = frozenset({"false", "f", "0", "no", "n", "off"})

# A dense and a sparse vector of BGE-M3, the tokens of the key, and the entry's overhead.
CACHED_TEXT_BYTES = 8192
# tiktoken's file name for cl100k_base in its cache: the SHA-1 of the file's address.
CL100K_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def address_only(text: str) -> str | None:
    """An address or localhost. Other values are ignored: shells and containers set it to the machine's name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text if text == "localhost" else None
    return text


def no_service_link(text: str) -> str | None:
    """A number. A `tcp://10.0.0.1:80`, as Kubernetes sets NAME_PORT for a service called NAME, is ignored."""
    return None if "://" in text else text


def first_bare_level(text: str) -> str | None:
    """The first level without a target: `info` of `info,tower=debug`."""
    return next((part.strip() for part in text.split(",") if part.strip() and "=" not in part), None)


def json_lines(text: str) -> str:
    """A switch: json if on, text if off."""
    return "text" if text.lower() in FALSE else "json"


def named_models(text: str) -> str | None:
    """Models that requests may name; all of them are served. `*` allows every model and names none."""
    return None if text == "*" else text


def same_for_all(text: str) -> str:
    """One value for each model, as in `cuda;cuda;`. They must be equal."""
    values = {part.strip() for part in text.split(";") if part.strip()}
    return values.pop() if len(values) == 1 else text


def largest(text: str) -> str:
    """One number for each model, as in `32;64`. The largest counts, since there is one limit here."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    return max(parts, key=int) if parts and all(re.fullmatch("[0-9]{1,18}", part) for part in parts) else text


def cpu_if_none_visible(text: str) -> str | None:
    """-1 hides every GPU and means cpu. torch itself reads every other value."""
    return "cpu" if text == "-1" else None


def python_list(text: str) -> str | None:
    """`['cuda:0', 'cuda:1']` without brackets and quotes. None, or an empty list, is ignored."""
    names = [part.strip(" \t'\"") for part in text.strip(" \t[]()").split(",")]
    return None if names in ([""], ["None"]) else ",".join(names)


def cuda_numbers(text: str) -> str | None:
    """Numbers of GPUs: `0,1` means cuda:0,cuda:1. Other values are ignored."""
    numbers = [part.strip() for part in text.strip(" ;").split(",")]
    return ",".join(f"cuda:{number}" for number in numbers) if all(map(str.isdecimal, numbers)) else None


def cuda_if_there(text: str) -> str:
    """`cuda` falls back to the CPU: cuda-or-cpu."""
    return "cuda-or-cpu" if text.lower() == "cuda" else text


def one_text_if_off(text: str) -> str | None:
    """A switch: off means 1, one text in each batch."""
    if text.lower() in FALSE:
        return "1"
    return None if text.lower() in TRUE else text


def all_if_on(text: str) -> str | None:
    """A switch: on means *."""
    if text.lower() in TRUE:
        return "*"
    return None if text.lower() in FALSE else text


def texts_as_bytes(text: str) -> str:
    """A number of texts, at 8 KiB each."""
    return str(int(text) * CACHED_TEXT_BYTES) if re.fullmatch("[0-9]{1,12}", text) else text


def milliseconds(text: str) -> str:
    """A whole number of milliseconds."""
    return str(int(text) / 1000) if re.fullmatch("[0-9]{1,12}", text) else text


def cl100k_in(text: str) -> str | None:
    """tiktoken's cache folder: the file of cl100k_base in it, if there is one."""
    path = Path(text).expanduser() / CL100K_FILE
    return str(path) if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Ignored:
    """Variables that are accepted without effect; each is an option too. The log lists those that are set, once."""

    names: tuple[str, ...]
    why: str
    switch: bool = False  # the option needs no value


IGNORED: tuple[Ignored, ...] = (
    Ignored(("UDS_PATH",), "The socket between TEI and its Python backend; there is no second process here."),
    Ignored(("API_WORKERS",), "One event loop serves HTTP; num_threads and tokenization_workers count the threads."),
    Ignored(
        ("MAX_CONCURRENT",), "num_threads decides how many forwards run at once; more on the same cores are slower."
    ),
    Ignored(("INFINITY_REDIRECT_SLASH",), "`GET /` has an answer of its own; the API's page is at /docs."),
    Ignored(("HF_MODEL_CACHE_VOLUME",), "The volume of a compose file; the folder is hf_home."),
    Ignored(
        ("TRUST_REMOTE_CODE", "INFINITY_TRUST_REMOTE_CODE"), "Code from a model's repository never runs.", switch=True
    ),
    Ignored(
        ("ENABLE_WARMUP", "INFINITY_MODEL_WARMUP"),
        "Every model passes a self-test before it is ready, which also warms it up.",
        switch=True,
    ),
    Ignored(("WARMUP_BATCH_SIZE", "WARMUP_STEPS"), "As ENABLE_WARMUP."),
    Ignored(("INFINITY_ENGINE",), "Names of other engines; see backend."),
    Ignored(
        ("INFINITY_COMPILE", "INFINITY_BETTERTRANSFORMER"),
        "Every backend compiles its networks or runs them on fused kernels.",
        switch=True,
    ),
    Ignored(("INFINITY_VECTOR_DISK_CACHE",), "Vectors are cached in memory; see cache_bytes.", switch=True),
    Ignored(("INFINITY_EMBEDDING_DTYPE",), "Each request chooses the number format of its vectors."),
    Ignored(("INFINITY_LENGTHS_VIA_TOKENIZE",), "Usage always counts the tokens that ran.", switch=True),
    Ignored(("INFINITY_PRELOAD_ONLY",), "`vectord pull` fetches models without serving them.", switch=True),
    Ignored(
        ("INFINITY_ONNX_DISABLE_OPTIMIZE", "INFINITY_ONNX_DO_NOT_PREFER_QUANTIZED"),
        "backend, dtype and onnx_file choose the ONNX graph.",
        switch=True,
    ),
    Ignored(("INFINITY_CALIBRATION_DATASET_URL",), "int8 vectors have one scale for all texts; nothing is fetched."),
    Ignored(("INFINITY_ANONYMOUS_USAGE_STATS", "DO_NOT_TRACK"), "vectord reports nothing to anyone.", switch=True),
    Ignored(
        ("CUDA_ARENA_SIZE", "CUDA_ARENA_EXTEND_STRATEGY", "GPU_PRESSURE_THRESHOLD"),
        "ONNX Runtime's memory grows as needed and is returned.",
    ),
    Ignored(
        ("MAX_RERANKING_BATCH_SIZE", "QWEN_RERANK_BATCH_SIZE"),
        "Pairs are batched like texts, by tokens; see max_batch_tokens and max_batch_requests.",
    ),
    Ignored(
        ("INFINITY_QUEUE_SIZE", "INFERENCE_MAX_QUEUE_DEPTH"),
        "All requests share one limit; see max_concurrent_requests and max_queue_wait_s.",
    ),
    Ignored(
        ("MAX_SENTENCE_CHARS", "MAX_TOTAL_CHARS_PER_REQUEST", "MAX_RERANK_TEXT_CHARS", "MAX_RERANK_TOTAL_CHARS"),
        "Smart Embedder has dropped them; payload_limit bounds a body.",
    ),
)
IGNORED_NAMES = {name: ignored for ignored in IGNORED for name in ignored.names}
