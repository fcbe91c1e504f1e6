"""Variables of other servers: which setting each one sets, how its value is read, and which ones have no effect here.

A reader turns another program's value into the text that the setting accepts, or into None if it is not meant for this
server. A reader never fails: it passes on a text that it does not understand, and the setting rejects that.
docs/configuration.md quotes the docstrings of readers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from vectord.errors import ConfigError

ValueReader: TypeAlias = Callable[[str], str | None]

TRUE = frozenset({"true", "t", "1", "yes", "y", "on"})
FALSE = frozenset({"false", "f", "0", "no", "n", "off"})


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


FOR_EACH_MODEL = (same_for_all, largest)  # a repeated option is such a list


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


def never_if_off(text: str) -> str | None:
    """A switch: off means never."""
    return "never" if text.lower() in FALSE else None


def none_if_off(text: str) -> str | None:
    """A switch: off means 0."""
    return "0" if text.lower() in FALSE else None


def all_if_on(text: str) -> str | None:
    """A switch: on means *."""
    if text.lower() in TRUE:
        return "*"
    return None if text.lower() in FALSE else text


def threads_if_set(text: str) -> str | None:
    """A number. -1, llama.cpp's default, is ignored."""
    return None if text == "-1" else text


def service_name(text: str) -> str | None:
    """The attribute `service.name`, as in `service.name=search,host.name=a`. The SDK reads the other attributes."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return next((unquote(value.strip()) for name, _, value in pairs if name.strip() == "service.name"), None)


def true_without_otlp(text: str) -> str | None:
    """Names of exporters: without `otlp`, as `none` and `console`, no traces are made."""
    return None if "otlp" in exporters(text) else "true"


def exporters(text: str) -> frozenset[str]:
    """The names in a list of OpenTelemetry's exporters."""
    return frozenset(part.strip().lower() for part in text.split(",") if part.strip())


def milliseconds(text: str) -> str:
    """A whole number of milliseconds."""
    return str(int(text) / 1000) if re.fullmatch("[0-9]{1,12}", text) else text


# --- variables of a profile -----------------------------------------------------------------------------------


def host_of(text: str) -> str | None:
    """The host of `host`, `host:port` or `http://host:port`; of `:port` every address, as in Go."""
    return "0.0.0.0" if text.startswith(":") and not text.startswith("::") else _authority(text).hostname  # noqa: S104


def port_of(text: str) -> str | None:
    """The port of `host:port`, `:port` or `http://host:port`; of a URL without one, 80 or 443."""
    parts = _authority(text)
    digits = parts.netloc.rpartition("]")[2].partition(":")[2]  # after an IPv6 address
    return digits or {"http": "80", "https": "443"}.get(parts.scheme)


def _authority(text: str) -> SplitResult:
    if text.count(":") > 1 and "[" not in text and "://" not in text:  # an IPv6 address alone
        text = f"[{text}]"
    return urlsplit(text if "://" in text else f"//{text}")


def idle_seconds(text: str) -> str:
    """Seconds, or a duration such as `5m` or `1h30m`. Negative: never. 0: after one second."""
    match = re.fullmatch(r"(-?)(?:([0-9.]+)|((?:[0-9.]+(?:ms|s|m|h))+))", text.strip())
    if match is None:
        return text
    sign, plain, units = match.groups()
    pieces = re.findall(r"([0-9.]+)(ms|s|m|h)", units or f"{plain}s")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in pieces)
    return "0" if sign else f"{max(seconds, 1.0):g}"


_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def unless_zero(text: str) -> str | None:
    """A number. 0, which stands for a default, is ignored."""
    return None if text == "0" else text


def at_most_8192(text: str) -> str | None:
    """A number of tokens; 0 is ignored, and a larger number means 8192."""
    return unless_zero(str(min(int(text), 8192)) if re.fullmatch("[0-9]{1,9}", text) else text)


# What `[environment]` of a profile may name. A setting is read from one variable.
PROFILE_READERS: Mapping[str, ValueReader] = {
    reader.__name__: reader for reader in (host_of, port_of, idle_seconds, unless_zero, at_most_8192)
}

# --- variables of every profile -------------------------------------------------------------------------------

# Variables that set a setting, after the two of its own name, in the order in which they win.
NAMES = {
    "models": "MODEL_ID MODEL_NAMES INFINITY_MODEL_ID INFERENCE_ALLOWED_EMBEDDING_MODELS LLAMA_ARG_MODEL "
    "LLAMA_ARG_HF_REPO LLAMA_ARG_MODEL_URL",
    "reranker_model": "DEFAULT_RERANKING_MODEL",
    "rerankers": "INFERENCE_ALLOWED_RERANK_MODELS",
    "served_model_name": "INFINITY_SERVED_MODEL_NAME LLAMA_ARG_ALIAS",
    "model_catalogue": "MODEL_CONFIG",
    "revision": "INFINITY_REVISION",
    "model_path": "INFERENCE_MODEL_PATH",
    "hf_home": "INFINITY_HOME",
    "hub_cache": "HF_HUB_CACHE HUGGINGFACE_HUB_CACHE",
    "hf_token": "HF_API_TOKEN HUGGING_FACE_HUB_TOKEN",
    "offline": "HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
    "pooling": "INFINITY_POOLING_METHOD LLAMA_ARG_POOLING",
    "device": "MULTI_GPU_DEVICES MODEL_DEVICE INFINITY_DEVICE_ID INFINITY_DEVICE ORT_EXECUTION_PROVIDER "
    "CUDA_VISIBLE_DEVICES",
    "dtype": "INFINITY_DTYPE",
    "num_threads": "ORT_NUM_THREADS LLAMA_ARG_THREADS",
    "max_batch_requests": "BATCH_MAX_ITEMS BATCH_WINDOW_MAX_SIZE BATCH_MAX_SIZE "
    "MAX_EMBEDDING_BATCH_SIZE INFINITY_BATCH_SIZE INFERENCE_GPU_BATCH_SIZE",
    "max_client_batch_size": "INFINITY_MAX_CLIENT_BATCH_SIZE MAX_BATCH_SIZE INFERENCE_MAX_BATCH_SIZE",
    "max_concurrent_requests": "MAX_QUEUE_SIZE INFERENCE_MAX_CONCURRENT_REQUESTS",
    "queue_timeout_s": "QUEUE_TIMEOUT_SEC INFERENCE_QUEUE_TIMEOUT_MS",
    "request_timeout_s": "REQUEST_TIMEOUT LLAMA_ARG_TIMEOUT",
    "forward_timeout_s": "GPU_PROCESS_TIMEOUT",
    "front_ends": "API_WORKERS",
    "host": "INFINITY_HOST API_HOST INFERENCE_HOSTNAME LLAMA_ARG_HOST HOSTNAME",
    "port": "INFINITY_PORT API_PORT INFERENCE_PORT LLAMA_ARG_PORT",
    "url_prefix": "INFINITY_URL_PREFIX INFINITY_PROXY_ROOT_PATH PROXY_ROOT_PATH LLAMA_ARG_API_PREFIX",
    "api_key": "INFINITY_API_KEY LLAMA_API_KEY VLLM_API_KEY",
    "cors_allow_origin": "CORS_ALLOWED_ORIGINS INFINITY_PERMISSIVE_CORS",
    "tls_enabled": "SERVER_SSL_ENABLED",
    "tls_cert_file": "TLS_SERVER_CERT_PATH LLAMA_ARG_SSL_CERT_FILE",
    "tls_key_file": "TLS_SERVER_KEY_PATH LLAMA_ARG_SSL_KEY_FILE",
    "compress_min_bytes": "GZIP_MIN_BYTES",
    "log_level": "INFINITY_LOG_LEVEL RUST_LOG",
    "log_format": "JSON_OUTPUT",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_protocol": "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL OTEL_EXPORTER_OTLP_PROTOCOL",
    "otlp_service_name": "OTEL_SERVICE_NAME OTEL_RESOURCE_ATTRIBUTES SERVICE_NAME",
    "disable_spans": "OTEL_TRACES_EXPORTER OTEL_SDK_DISABLED",
}
# Why options of other servers are not accepted, or what replaces them -> the options.
_OTHER_OPTIONS = {
    "a model's own length applies, and --max-length shortens it": "--ctx-size -c --max-model-len",
    "the model's files decide": "--tokenizer --tokenizer-mode --tokenizer-revision --code-revision --hf-overrides "
    "--config-format --load-format --model-impl --generation-config --attention --rope-scaling --rope-freq-base "
    "--override-kv --chat-template-content-format --skip-tokenizer-init",
    "the model decides; --task chooses where it can do several": "--runner --convert --embedding --embeddings "
    "--reranking --rerank",
    "each GPU holds the whole model; --device cuda:0,cuda:1 distributes texts": "--tensor-parallel-size -tp "
    "--pipeline-parallel-size -pp --data-parallel-size -dp --distributed-executor-backend --split-mode -sm "
    "--tensor-split -ts --main-gpu -mg",
    "requests share batches without it; remove it": "--parallel -np --cont-batching --no-cont-batching -cb "
    "--async-scheduling",
    "its part is always served; remove it": "--metrics --props --slots --no-slots --webui --no-webui --jinja",
    "vectord decides this itself; remove it": "--enforce-eager --seed -s --swap-space --cpu-offload-gb --block-size "
    "--enable-prefix-caching --no-enable-prefix-caching --enable-chunked-prefill --kv-cache-dtype --compilation-config "
    "-O --attention-backend --flash-attn -fa --mlock --no-mmap --numa --cache-type-k --cache-type-v -ctk -ctv "
    "--disable-log-stats --disable-frontend-multiprocessing --no-warmup --check-tensors --cpu-mask -C --prio --poll "
    "--swa-full -kvu -nkvo --cache-ram --no-perf",
    "text is not generated, and images are not read; remove it": "--tool-call-parser --enable-auto-tool-choice "
    "--response-role --guided-decoding-backend --max-logprobs --limit-mm-per-prompt --keep -n",
    "a template in a request never runs; remove it": "--trust-request-chat-template",
    "certificates of clients are not checked; use a proxy for that": "--ssl-ca-certs",
    "the log goes to standard error; see --log-format": "--log-file --log-config-file --log-colors --log-prefix "
    "--log-timestamps",
    "use --access-log or --no-access-log": "--enable-log-requests --no-enable-log-requests --disable-log-requests "
    "--disable-uvicorn-access-log",
    "use --api-keys-file, whose format differs": "--api-key-file",
    "use --cors-allow-origin": "--allowed-origins --allowed-methods --allowed-headers --allow-credentials",
    "use --device": "-dev",
    "use --device cuda": "--n-gpu-layers --gpu-layers --ngl -ngl",
    "use --device-memory-mib": "--gpu-memory-utilization",
    "use --dtype int8": "--quantization --quantize -q",
    "use --front-ends": "--api-server-count --threads-http",
    "use --hf-token": "-hft",
    "use --hub-cache": "--download-dir",
    "use --log-level": "--uvicorn-log-level --log-disable --verbose -v --verbosity -lv",
    "use --lora NAME=FOLDER": "--enable-lora --lora-modules --max-loras --max-lora-rank --lora-scaled",
    "use --max-batch-requests": "--max-num-seqs",
    "use --max-batch-tokens": "--max-num-batched-tokens --ubatch-size -ub -b",
    "use --model with a hub id, a folder or a GGUF file": "-m --hf-repo -hf -hfr --hf-file -hff --model-url -mu "
    "--hf-config-path",
    "use --model-path": "--models-dir",
    "use --num-threads": "--threads -t --threads-batch -tb",
    "use --otlp-endpoint": "--otlp-traces-endpoint --collect-detailed-traces",
    "use --pooling": "--pooler-config --override-pooler-config",
    "use --request-timeout-s": "--timeout -to",
    "use --served-model-name": "--alias -a",
    "use --tls-cert-file": "--ssl-certfile --ssl-cert-file",
    "use --tls-key-file": "--ssl-keyfile --ssl-key-file",
    "use --url-prefix": "--root-path --api-prefix",
}
OTHER_OPTIONS = {option: instead for instead, options in _OTHER_OPTIONS.items() for option in options.split()}
# What the value of a variable means here, if it is not in our form.
READERS: Mapping[str, ValueReader] = {
    **dict.fromkeys(("INFERENCE_ALLOWED_EMBEDDING_MODELS", "INFERENCE_ALLOWED_RERANK_MODELS"), named_models),
    **dict.fromkeys(
        ("INFINITY_REVISION", "INFINITY_POOLING_METHOD", "INFINITY_DEVICE", "INFINITY_DTYPE"), same_for_all
    ),
    **dict.fromkeys(("VECTORD_PORT", "PORT", "INFINITY_PORT", "API_PORT", "INFERENCE_PORT"), no_service_link),
    **dict.fromkeys(("VECTORD_GRPC_PORT", "GRPC_PORT"), no_service_link),
    **dict.fromkeys(("VECTORD_PROMETHEUS_PORT", "PROMETHEUS_PORT"), no_service_link),
    "MULTI_GPU_DEVICES": python_list,
    "INFINITY_DEVICE_ID": cuda_numbers,
    "ORT_EXECUTION_PROVIDER": cuda_if_there,
    "CUDA_VISIBLE_DEVICES": cpu_if_none_visible,
    "ENABLE_BATCHING": never_if_off,
    "ENABLE_WARMUP": none_if_off,
    "INFINITY_BATCH_SIZE": largest,
    "INFERENCE_QUEUE_TIMEOUT_MS": milliseconds,
    "LLAMA_ARG_THREADS": threads_if_set,
    "HOSTNAME": address_only,
    "INFINITY_PERMISSIVE_CORS": all_if_on,
    "RUST_LOG": first_bare_level,
    "JSON_OUTPUT": json_lines,
    "OTEL_RESOURCE_ATTRIBUTES": service_name,
    "OTEL_TRACES_EXPORTER": true_without_otlp,
}
# Options that need no value although their setting is not a boolean.
SWITCHES = frozenset({"--enable-batching", "--enable-warmup", "--permissive-cors", "--json-output"})
# Variables whose bad value is logged and skipped, as Smart Embedder does.
LENIENT = frozenset(
    [
        "BGE_EMBED_MAX_LENGTH",
        "MAX_INPUT_LENGTH",
        "QWEN_EMBED_MAX_LENGTH",
        "BGE_RERANK_MAX_LENGTH",
        "QWEN_RERANK_MAX_LENGTH",
        "QWEN_RERANK_BATCH_SIZE",
        "MAX_QUEUE_SIZE",
        "RERANK_MAX_QUEUE",
        "REQUEST_TIMEOUT",
        "RERANK_GPU_TIMEOUT",
        "GPU_PROCESS_TIMEOUT",
        "RATE_LIMIT_REQUESTS_PER_MINUTE",
        "RATE_LIMIT_BURST_SIZE",
        "MAX_SENTENCES_PER_REQUEST",
        "MAX_SENTENCE_CHARS",
        "MAX_TOTAL_CHARS_PER_REQUEST",
        "MAX_RERANK_PASSAGES",
        "MAX_RERANK_TEXT_CHARS",
        "MAX_RERANK_TOTAL_CHARS",
    ]
)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Variables that are accepted without effect; each is an option too. The log lists those that are set, once."""

    names: tuple[str, ...]
    why: str
    switch: bool = False  # the option needs no value
    harmless: frozenset[str] = frozenset()  # the values that change nothing; empty: all

    def check(self, name: str, text: str) -> None:
        """Raises ConfigError for a value that would change vectors on the other server."""
        if self.harmless and not self.harmless.issuperset(filter(None, text.split(";"))):
            raise ConfigError(f"{name}: expected {' or '.join(sorted(self.harmless))}. {self.why}")


IGNORED: tuple[Ignored, ...] = (
    Ignored(("UDS_PATH",), "The socket between TEI and its Python backend; there is no second process here."),
    Ignored(("INFINITY_REDIRECT_SLASH",), "`GET /` has an answer of its own; the API's page is at /docs."),
    Ignored(("HF_MODEL_CACHE_VOLUME",), "The volume of a compose file; the folder is hf_home."),
    Ignored(
        ("TRUST_REMOTE_CODE", "INFINITY_TRUST_REMOTE_CODE"), "Code from a model's repository never runs.", switch=True
    ),
    Ignored(
        ("INFINITY_MODEL_WARMUP",),
        "Every model passes a self-test before it is ready, which also warms it up.",
        switch=True,
    ),
    Ignored(("INFINITY_ENGINE",), "Names of other engines; see backend."),
    Ignored(
        ("INFINITY_COMPILE", "INFINITY_BETTERTRANSFORMER"),
        "Every backend compiles its networks or runs them on fused kernels.",
        switch=True,
    ),
    Ignored(("INFINITY_VECTOR_DISK_CACHE",), "Vectors are cached in memory; see cache_bytes.", switch=True),
    Ignored(
        ("INFINITY_EMBEDDING_DTYPE",),
        "Each request chooses the number format of its vectors, in the APIs that have one.",
        harmless=frozenset({"float32"}),
    ),
    Ignored(("INFINITY_LENGTHS_VIA_TOKENIZE",), "Usage always counts processed tokens.", switch=True),
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
        ("INFINITY_QUEUE_SIZE", "INFERENCE_MAX_QUEUE_DEPTH"),
        "All requests share one limit; see max_concurrent_requests and max_queue_wait_s.",
    ),
    Ignored(("OLLAMA_HOST",), "Read under the profile ollama only, because it also sets a client's server."),
    Ignored(("OLLAMA_ORIGINS", "OLLAMA_KEEP_ALIVE", "OLLAMA_MAX_QUEUE"), "Read under the profile ollama only."),
    Ignored(("OLLAMA_MAX_LOADED_MODELS",), "model_memory_bytes limits the memory of all loaded models."),
    Ignored(("OLLAMA_NUM_PARALLEL", "OLLAMA_CONTEXT_LENGTH"), "Read under the profile ollama only."),
    Ignored(("LLAMA_ARG_N_PARALLEL",), "Requests share batches."),
    Ignored(("LLAMA_ARG_CTX_SIZE",), "A model's own length applies."),
    Ignored(("LLAMA_ARG_BATCH", "LLAMA_ARG_UBATCH"), "max_batch_tokens limits a batch."),
    Ignored(("LLAMA_ARG_N_GPU_LAYERS",), "device chooses the processor or a GPU for the whole model."),
    Ignored(("LLAMA_ARG_HF_FILE",), "models names a hub id, a folder or a GGUF file."),
    Ignored(("LLAMA_ARG_EMBEDDINGS", "LLAMA_ARG_RERANKING"), "The model's files decide; see task.", switch=True),
)
IGNORED_NAMES = {name: ignored for ignored in IGNORED for name in ignored.names}
