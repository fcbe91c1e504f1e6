"""Every setting once: name, unit, default, one line of meaning, other names it goes by.

The command line, the environment, `.env`, the config file, `--print-config`, `.env.example` and
docs/configuration.md are all derived from these classes, by way of settings.py (sources.py reads, nobody else does).
`--max-batch-tokens`, `MAX_BATCH_TOKENS` and `VECTORD_MAX_BATCH_TOKENS` follow from `max_batch_tokens`; only further
names stand here, and those are options too. Field names are unique over all sections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from vectord.config import readers

Reader: TypeAlias = Callable[[str], str | None]


def setting(
    default: Any,
    meaning: str,
    *,
    env: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    synonyms: Mapping[str, str | None] | None = None,
    pattern: str | None = None,
    reads: Mapping[str, Reader] | None = None,
    switches: tuple[str, ...] = (),
    lenient: tuple[str, ...] = (),
    verbatim: bool = False,
    secret: bool = False,
) -> Any:
    """A dataclass field and how it is written.

    env: names beside the derived ones, first wins; flags: options beside those of all names. synonyms: other words for
    a value, in lower case; None for "as if nothing were said". pattern: a regular expression that the whole text must
    match. reads: for a name in the environment and its option, unless that is among `flags`, what its text means in our
    words, or None where it is not meant for us (readers.py). switches: options that may stand without a value though
    the setting is no boolean. lenient: names of Smart Embedder, which warns of a bad value and goes on without it.
    verbatim: spaces around the value count. secret: never printed.
    """
    return field(
        default=default,
        repr=not secret,
        metadata={
            "meaning": meaning,
            "env": env,
            "flags": flags,
            "at_least": at_least,
            "at_most": at_most,
            "choices": choices,
            "synonyms": synonyms or {},
            "pattern": pattern,
            "reads": reads or {},
            "switches": switches,
            "lenient": lenient,
            "verbatim": verbatim,
            "secret": secret,
        },
    )


DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

# In the order in which they share paths; a profile puts its own first (files.py).
DIALECTS = (
    "smart_embedder",
    "openai",
    "tei",
    "vectord",
    "semantic_explorer",  # before all others that rank `documents` at /rerank: its answer has every key they read
    "cohere",
    "jina",
    "voyage",
    "infinity",
    "simple_inference_server",
    "embedding_server",
    "vllm",
    "llamacpp",
    "ollama",
    "weaviate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Models: which, from where, and how they are read."""

    models: tuple[str, ...] = setting(
        (),
        "Models to serve: hub ids, folders, packages; default, where no other setting names one that embeds: "
        f"{DEFAULT_MODEL}.",
        env=("MODEL_ID", "MODEL_NAMES", "INFINITY_MODEL_ID", "INFERENCE_ALLOWED_EMBEDDING_MODELS"),
        reads={"INFERENCE_ALLOWED_EMBEDDING_MODELS": readers.named_models},
    )
    default_embedding_model: str | None = setting(
        None, "A model served before all others, so that it embeds where a request names none."
    )
    dense_embedding_model: str | None = setting(
        None,
        "A model whose dense vectors stand beside the sparse and ColBERT vectors of the first other that makes them.",
    )
    reranker_model: str | None = setting(
        None, "A reranker served behind the others; the first one reranks by default.", env=("DEFAULT_RERANKING_MODEL",)
    )
    rerankers: tuple[str, ...] = setting(
        (),
        "Further rerankers.",
        env=("INFERENCE_ALLOWED_RERANK_MODELS",),
        reads={"INFERENCE_ALLOWED_RERANK_MODELS": readers.named_models},
    )
    served_model_name: tuple[str, ...] = setting(
        (), "Names clients use, one a model; default: the id itself.", env=("INFINITY_SERVED_MODEL_NAME",)
    )
    model_aliases: tuple[str, ...] = setting((), "Further names clients use: NAME=MODEL, of served models.")
    composites: tuple[str, ...] = setting(
        (), "Names over several models: NAME=dense:MODEL+sparse:MODEL+colbert:MODEL, of served models."
    )
    pinned_models: tuple[str, ...] = setting(
        (), "Served names that load at start and are never unloaded by themselves."
    )
    model_catalogue: str | None = setting(
        None,
        "YAML file of further models: name, hf_repo_id, handler.",
        env=("MODEL_CONFIG",),
        flags=("--config-models",),
    )
    revision: str | None = setting(
        None,
        "Hub revision, branch or commit of the models.",
        env=("INFINITY_REVISION",),
        reads={"INFINITY_REVISION": readers.same_for_all},
    )
    lock_file: str | None = setting(
        None, "File that `vectord pull` wrote: models are of its commits, and one whose files differ is refused."
    )
    model_path: str | None = setting(
        None,
        "Folder of model folders, which is looked into before the hub: for BAAI/bge-m3 at BAAI/bge-m3 and at bge-m3.",
        env=("INFERENCE_MODEL_PATH",),
    )
    hf_home: str | None = setting(
        None,
        "Folder of Hugging Face, with its cache of models in hub/; hub_cache goes before it, unless this one is said "
        "nearer to the command line.",
        env=("INFINITY_HOME",),
    )
    hub_cache: str | None = setting(
        None, "Folder of the cache of models itself.", env=("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    )
    hf_endpoint: str | None = setting(None, "Address of the hub or of a mirror of it.")
    hf_token: str | None = setting(
        None,
        "Token for gated models; used by downloads alone.",
        env=("HF_API_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        secret=True,
    )
    offline: bool = setting(
        False, "Never ask the hub; local files only.", env=("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    task: Literal["auto", "embed", "rerank", "classify"] = setting(
        "auto",
        "What the models are wanted for, where their files leave it open; auto: what each was made for.",
        synonyms={"sentence-similarity": None, "feature-extraction": None},
    )
    pooling: Literal["cls", "mean", "last", "max", "splade"] | None = setting(
        None,
        "Pooling instead of the model's own; splade: it must be a SPLADE.",
        env=("INFINITY_POOLING_METHOD",),
        synonyms={"last-token": "last", "auto": None},
        reads={"INFINITY_POOLING_METHOD": readers.same_for_all},
    )
    dense_path: str | None = setting(
        None, "Folder inside the model's of the Dense module to use instead of its own: 2_Dense_1024."
    )
    default_prompt: str | None = setting(
        None, "Text put before texts when the request names no prompt; not beside default_prompt_name.", verbatim=True
    )
    default_prompt_name: str | None = setting(None, "Prompt of the model put before texts when the request names none.")
    bge_embed_max_length: int | None = setting(
        None,
        "Tokens a text may have for models of BERT's kind that embed, where they read more.",
        env=("MAX_INPUT_LENGTH",),
        at_least=1,
        at_most=8192,
        lenient=("BGE_EMBED_MAX_LENGTH", "MAX_INPUT_LENGTH"),
    )
    qwen_embed_max_length: int | None = setting(
        None,
        "Tokens a text may have for Qwen models that embed, where they read more.",
        at_least=1,
        at_most=32_768,
        lenient=("QWEN_EMBED_MAX_LENGTH",),
    )
    bge_rerank_max_length: int | None = setting(
        None,
        "Tokens a pair may have for cross-encoders, where they read more; BAAI advises 1024 for its own.",
        at_least=1,
        at_most=8192,
        lenient=("BGE_RERANK_MAX_LENGTH",),
    )
    qwen_rerank_max_length: int | None = setting(
        None,
        "Tokens a pair may have for language models that judge it, where they read more.",
        at_least=128,
        at_most=32_768,
        lenient=("QWEN_RERANK_MAX_LENGTH",),
    )
    foreign_token_table: str | None = setting(
        None,
        "File cl100k_base.tiktoken, by which token ids of OpenAI's models are read as the text they stand for.",
        env=("TIKTOKEN_CACHE_DIR",),
        reads={"TIKTOKEN_CACHE_DIR": readers.cl100k_in},
    )

    @property
    def in_order(self) -> tuple[str, ...]:
        """All models to serve, each once. Of those that can do what a request asks, the first does it."""
        embedding = [self.default_embedding_model, self.dense_embedding_model, *self.models]
        named = [name for name in embedding if name is not None] or [DEFAULT_MODEL]
        reranking = [name for name in (self.reranker_model, *self.rerankers) if name is not None]
        return tuple(dict.fromkeys((*named, *reranking)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Device: what computes, in which numbers, and how much at once."""

    backend: str = setting(
        "auto",
        "openvino, torch, onnx, onnxruntime, transformers, handler or fake; auto: torch for a GPU that it finds, else "
        "openvino, and what a model needs that neither runs.",
    )
    device: str = setting(
        "auto",
        "auto (CUDA, else MPS, else the processor), cpu, cuda, cuda:N, mps, cuda-or-cpu, which warns where there is no "
        "CUDA, or several that share the work, such as cuda:0,cuda:1; cuda:all: each GPU there is.",
        env=(
            "MULTI_GPU_DEVICES",
            "MODEL_DEVICE",
            "INFINITY_DEVICE_ID",
            "INFINITY_DEVICE",
            "ORT_EXECUTION_PROVIDER",
            "CUDA_VISIBLE_DEVICES",
        ),
        pattern=r"auto|cpu(,cpu){0,63}|cuda(:\d{1,3})?(,cuda(:\d{1,3})?){0,63}|cuda:all|mps|cuda-or-cpu",
        reads={
            "MULTI_GPU_DEVICES": readers.python_list,
            "INFINITY_DEVICE_ID": readers.cuda_numbers,
            "INFINITY_DEVICE": readers.same_for_all,
            "ORT_EXECUTION_PROVIDER": readers.cuda_if_there,
            "CUDA_VISIBLE_DEVICES": readers.cpu_if_none_visible,
        },
    )
    device_replicas: int = setting(
        1,
        "How often each device has the model: more than one may run short texts faster on a GPU that waits for them, "
        "and each holds the weights once more.",
        at_least=1,
        at_most=16,
    )
    dtype: str = setting(
        "auto",
        "auto: what the device computes in best; int8: linear layers alone. What it cannot compute in is replaced, "
        "with a warning.",
        env=("INFINITY_DTYPE",),
        choices=("auto", "float32", "bfloat16", "float16", "int8"),
        reads={"INFINITY_DTYPE": readers.same_for_all},
    )
    onnx_file: str | None = setting(
        None,
        "ONNX file inside the model's folder that the backends onnx and onnxruntime run, such as onnx/model_O4.onnx; "
        "default: the one whose name says dtype.",
    )
    calibration_file: str | None = setting(
        None, "Texts, one a line, by which int8 is fitted to a model on the processor; default: built-in ones."
    )
    calibration_folder: str | None = setting(
        None, "Folder that keeps what was found so, for the next start; default: it is found anew at each."
    )
    tf32: bool = setting(False, "On CUDA: float32 products in TF32, faster and with 10 bits of fraction.")
    device_memory_mib: int | None = setting(
        None,
        "On CUDA: MiB that all models together may take of the device, beside the driver's own; default: all there is.",
        at_least=64,
        at_most=2**24,
    )
    graph_memory_mib: int = setting(
        512, "On CUDA: MiB for one model's graphs of small batches; 0: no graphs.", at_least=0, at_most=2**20
    )
    capacity_s: float = setting(
        10.0,
        "On CUDA: seconds a load may measure how many tokens a forward runs best, unless max_batch_tokens says; 0: "
        "not measured.",
        at_least=0,
        at_most=600,
    )
    batch_sizes: Literal["measured", "smart-embedder"] = setting(
        "measured",
        "On CUDA, unless max_batch_requests says: texts a forward runs at most; smart-embedder: by that product's "
        "table, from the device's memory and the model's longest text.",
        choices=("measured", "smart-embedder"),
    )
    num_threads: int | None = setting(
        None,
        "Processor threads; default, and at most: what cgroup quota and affinity allow, rounded down.",
        env=("ORT_NUM_THREADS",),
        at_least=1,
        at_most=1024,
    )
    max_batch_tokens: int | None = setting(
        None, "Tokens a forward runs at most; default: the backend's measured best.", at_least=1, at_most=1_048_576
    )
    max_batch_requests: int | None = setting(
        None,
        "Texts a forward runs at most.",
        env=(
            "BATCH_MAX_ITEMS",
            "ENABLE_BATCHING",
            "BATCH_WINDOW_MAX_SIZE",
            "BATCH_MAX_SIZE",
            "MAX_EMBEDDING_BATCH_SIZE",
            "INFINITY_BATCH_SIZE",
            "INFERENCE_GPU_BATCH_SIZE",
        ),
        at_least=1,
        at_most=65_536,
        reads={"ENABLE_BATCHING": readers.one_text_if_off, "INFINITY_BATCH_SIZE": readers.largest},
        switches=("--enable-batching",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine: limits, waiting, cache, and over-long texts."""

    max_client_batch_size: int = setting(
        2048,
        "Inputs one request may carry.",
        env=("INFINITY_MAX_CLIENT_BATCH_SIZE", "MAX_BATCH_SIZE", "INFERENCE_MAX_BATCH_SIZE"),
        at_least=1,
        at_most=200_000,
    )
    max_concurrent_requests: int = setting(
        4096,
        "Requests under way at once, those that wait among them; more are refused.",
        env=("MAX_QUEUE_SIZE", "INFERENCE_MAX_CONCURRENT_REQUESTS"),
        at_least=1,
        at_most=1_000_000,
        lenient=("MAX_QUEUE_SIZE",),
    )
    max_concurrent_reranks: int | None = setting(
        None,
        "Rerankings among them; more wait, and are refused, as if all places were taken.",
        env=("RERANK_MAX_QUEUE",),
        at_least=1,
        at_most=1_000_000,
        lenient=("RERANK_MAX_QUEUE",),
    )
    queue_timeout_s: float = setting(
        0.0,
        "Seconds a request waits for a place when max_concurrent_requests are under way; 0: it is refused at once.",
        env=("QUEUE_TIMEOUT_SEC", "INFERENCE_QUEUE_TIMEOUT_MS"),
        at_least=0,
        at_most=3600,
        reads={"INFERENCE_QUEUE_TIMEOUT_MS": readers.milliseconds},
    )
    max_queue_wait_s: float = setting(
        30.0,
        "Predicted wait beyond which a request is refused with 429 and Retry-After.",
        at_least=0.001,
        at_most=86_400,
    )
    request_timeout_s: float = setting(
        0.0,
        "Seconds until a request that is not answered gets 504; 0: never. x-vectord-timeout-ms says less for one.",
        env=("REQUEST_TIMEOUT",),
        at_least=0,
        at_most=86_400,
        lenient=("REQUEST_TIMEOUT",),
    )
    rerank_timeout_s: float = setting(
        0.0,
        "Seconds until a reranking that is not done gets 504; 0: never.",
        env=("RERANK_GPU_TIMEOUT",),
        at_least=0,
        at_most=86_400,
        lenient=("RERANK_GPU_TIMEOUT",),
    )
    forward_timeout_s: float = setting(
        300.0,
        "Seconds until a forward counts as hung: its texts fail, and another thread takes its place; 0: never.",
        env=("GPU_PROCESS_TIMEOUT",),
        at_least=0,
        at_most=86_400,
        lenient=("GPU_PROCESS_TIMEOUT",),
    )
    batch_window_ms: float = setting(
        0.0, "How long an idle stream waits for company; 0: it never waits.", at_least=0, at_most=1000
    )
    max_age_s: float = setting(
        5.0,
        "How long a client's texts may wait unserved before they go first, whatever their lane.",
        at_least=0.001,
        at_most=3600,
    )
    bulk_tokens: int = setting(
        16_384,
        "A request of more tokens than this counts as bulk unless its header x-vectord-lane says otherwise.",
        at_least=1,
        at_most=2**40,
    )
    model_loading: Literal["start", "first-use"] = setting(
        "start", "When models load that are not pinned.", choices=("start", "first-use")
    )
    model_idle_s: float = setting(
        0.0, "Seconds after which a model that nobody used is unloaded; 0: never.", at_least=0, at_most=10_000_000
    )
    model_memory_bytes: int | None = setting(
        None,
        "What loaded models may hold together, by the size of their weights; the longest unused make room.",
        at_least=1,
        at_most=2**50,
    )
    cache_bytes: int = setting(
        64 * 2**20,
        "Room for vectors of texts seen before; 0: no cache.",
        env=("EMBEDDING_CACHE_SIZE",),
        at_least=0,
        at_most=2**50,
        reads={"EMBEDDING_CACHE_SIZE": readers.texts_as_bytes},
    )
    shared_cache: str | None = setting(
        None,
        "Redis that replicas share such vectors through, such as redis://host:6379/0; it must be trusted as they are.",
        pattern=r"(redis|rediss|unix)://.+",
        secret=True,
    )
    shared_cache_secret: str | None = setting(
        None,
        "What all replicas sign shared vectors with, 16 characters at least; what is not signed so is not believed.",
        pattern=r"(?s).{16,4096}",
        secret=True,
    )
    shared_cache_secret_file: str | None = setting(None, "File that holds shared_cache_secret.")
    shared_cache_ttl_s: int = setting(
        7 * 86_400, "Seconds that what is shared stays there.", at_least=1, at_most=366 * 86_400
    )
    tokenization_workers: int | None = setting(
        None, "Threads that tokenise; default: as many as the processor threads.", at_least=1, at_most=1024
    )
    force_dimensions: bool = setting(
        False, "Cut dense vectors to any width asked for, also of models that were not trained to be cut."
    )
    auto_truncate: bool | None = setting(
        None, "Cut over-long texts (true) or refuse them (false); default: as each dialect does."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Server: address, key, and the size of what goes in and out."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on.",
        env=("INFINITY_HOST", "API_HOST", "INFERENCE_HOSTNAME", "HOSTNAME"),
        flags=("--hostname",),
        reads={"HOSTNAME": readers.address_only},
    )
    port: int = setting(
        8000,
        "Port to listen on; 0: any free one.",
        env=("INFINITY_PORT", "API_PORT", "INFERENCE_PORT"),
        flags=("-p",),
        at_least=0,
        at_most=65_535,
        reads=dict.fromkeys(
            ("VECTORD_PORT", "PORT", "INFINITY_PORT", "API_PORT", "INFERENCE_PORT"), readers.no_service_link
        ),
    )
    front_ends: int = setting(
        0,
        "Processes that speak HTTP in front of the one that has the models, where one event loop is the limit; "
        "0 and 1: one process for all.",
        at_least=0,
        at_most=64,
    )
    grpc_port: int | None = setting(
        None,
        "Port of TEI's gRPC services; 0: any free one; default: none.",
        at_least=0,
        at_most=65_535,
        reads=dict.fromkeys(("VECTORD_GRPC_PORT", "GRPC_PORT"), readers.no_service_link),
    )
    prometheus_port: int | None = setting(
        None,
        "A further port for /metrics alone, as TEI has it; 0: any free one; default: none, it is at --port.",
        at_least=0,
        at_most=65_535,
        reads=dict.fromkeys(("VECTORD_PROMETHEUS_PORT", "PROMETHEUS_PORT"), readers.no_service_link),
    )
    url_prefix: str | None = setting(
        None,
        "A path such as /api/models, under which all paths are served too.",
        env=("INFINITY_URL_PREFIX", "INFINITY_PROXY_ROOT_PATH", "PROXY_ROOT_PATH"),
        pattern=r"(/[A-Za-z0-9._~-]+)*/?",
    )
    api_key: str | None = setting(
        None,
        "Key that every request must bring, but for health, metrics and docs.",
        env=("INFINITY_API_KEY", "LLAMA_API_KEY"),
        secret=True,
    )
    api_token: str | None = setting(None, "A second key, as good as api_key.", secret=True)
    admin_key: str | None = setting(
        None,
        "Key for loading and unloading models; without it, or one with admin = true in api_keys_file, those routes do "
        "not exist.",
        secret=True,
    )
    api_keys_file: str | None = setting(
        None,
        "TOML file of named keys, each with its models, quotas and lane; `vectord key NAME` makes one. "
        "Read anew when it changes.",
    )
    rate_limit_requests_per_minute: int | None = setting(
        None,
        "Requests an address may send, on every route; 0: any number; default: 3600 on smart_embedder's routes alone, "
        "and on embedding_server's 80 a second for each key.",
        at_least=0,
        at_most=1_000_000,
        lenient=("RATE_LIMIT_REQUESTS_PER_MINUTE",),
    )
    rate_limit_burst_size: int | None = setting(
        None,
        "Requests an address that has been quiet may send at once, where its rate is limited; default: 120.",
        at_least=1,
        at_most=1_000_000,
        lenient=("RATE_LIMIT_BURST_SIZE",),
    )
    redis_url: str | None = setting(
        None,
        "Where replicas share what they count for limits, such as redis://host:6379/0; default: each counts alone.",
        pattern=r"(redis|rediss|unix)://.+",
        secret=True,
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses and networks of proxies whose X-Forwarded-For says who the client is."
    )
    cors_allow_origin: tuple[str, ...] = setting(
        (),
        "Origins whose pages may call this server from a browser, such as https://example.com; *: all.",
        env=("CORS_ALLOWED_ORIGINS", "INFINITY_PERMISSIVE_CORS"),
        reads={"INFINITY_PERMISSIVE_CORS": readers.all_if_on},
        switches=("--permissive-cors",),
    )
    tls_enabled: bool | None = setting(
        None,
        "Speak TLS; default: if tls_cert_file and tls_key_file are set.",
        env=("SERVER_SSL_ENABLED",),
    )
    tls_cert_file: str | None = setting(
        None, "PEM file of the certificate, with the chain behind it.", env=("TLS_SERVER_CERT_PATH",)
    )
    tls_key_file: str | None = setting(
        None, "PEM file of the certificate's private key, without a password.", env=("TLS_SERVER_KEY_PATH",)
    )
    payload_limit: int = setting(
        32 * 2**20, "Bytes a body may have, after decompression too; 413 above.", at_least=1024, at_most=2**40
    )
    header_limit_bytes: int = setting(
        65_536, "Bytes that request line and headers may have; 431 above.", at_least=1024, at_most=2**30
    )
    compress_min_bytes: int = setting(
        4096,
        "Answers from this size are compressed for clients that accept zstd or gzip; 0: none.",
        env=("GZIP_MIN_BYTES",),
        at_least=0,
        at_most=2**40,
    )
    shutdown_timeout_secs: float = setting(
        30.0, "Seconds that accepted requests get to finish after SIGTERM.", at_least=0, at_most=3600
    )
    max_text_chars: int | None = setting(
        None,
        "Characters a text may have on OpenAI's routes; 400 above.",
        at_least=1,
        at_most=2**40,
    )
    max_sentences_per_request: int | None = setting(
        None,
        "Sentences a request may carry on smart_embedder's routes; 422 above.",
        at_least=1,
        at_most=200_000,
        lenient=("MAX_SENTENCES_PER_REQUEST",),
    )
    max_rerank_passages: int | None = setting(
        None,
        "Passages a request may carry on smart_embedder's routes; 422 above.",
        at_least=1,
        at_most=200_000,
        lenient=("MAX_RERANK_PASSAGES",),
    )
    dialects: tuple[str, ...] = setting(
        DIALECTS, "Which APIs are served; on a path that several speak the first one answers."
    )

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """Those that open the server; none: it is open to everyone."""
        return tuple(key for key in (self.api_key, self.api_token) if key is not None)

    @property
    def demands_key(self) -> bool:
        return bool(self.accepted_keys) or self.api_keys_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Telemetry: logs, metrics and traces."""

    log_level: str = setting(
        "info",
        "How much is logged.",
        env=("INFINITY_LOG_LEVEL", "RUST_LOG"),
        choices=("debug", "info", "warning", "error"),
        synonyms={"trace": "debug", "warn": "warning", "critical": "error", "fatal": "error"},
        reads={"RUST_LOG": readers.first_bare_level},
    )
    log_format: Literal["text", "dashed", "json"] = setting(
        "text",
        "text for people; dashed: `TIME - LEVEL - ...`, as Smart Embedder writes; json for collectors.",
        env=("JSON_OUTPUT",),
        synonyms={"pretty": "text", "plain": "text", "compact": "text"},
        reads={"JSON_OUTPUT": readers.json_lines},
        switches=("--json-output",),
    )
    enable_metrics: bool = setting(True, "Serve /metrics.")
    otlp_endpoint: str | None = setting(
        None,
        "Address of the OpenTelemetry collector that traces are sent to: http://host:4317; default: none are made.",
        env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        pattern=r"(https?://)?[^\s/:@]+(:\d{1,5})?(/[^\s?#]*)?|(https?://)?\[[0-9a-fA-F:.]+\](:\d{1,5})?(/[^\s?#]*)?",
    )
    otlp_protocol: Literal["auto", "grpc", "http/protobuf"] = setting(
        "auto",
        "How the collector is spoken to; auto: HTTP on port 4318 and at /v1/traces, else gRPC.",
        env=("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
        synonyms={"http": "http/protobuf", "http/json": "http/protobuf"},
    )
    otlp_service_name: str = setting(
        "vectord", "What traces call this service.", env=("OTEL_SERVICE_NAME", "SERVICE_NAME")
    )
    otlp_service_version: str | None = setting(
        None, "What they say of its version; default: vectord's own.", env=("OTEL_SERVICE_VERSION",)
    )
    disable_spans: bool = setting(False, "Make no traces, whatever collector is named.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it. `Config()` is what runs when nobody says anything."""

    model: ModelConfig = ModelConfig()
    device: DeviceConfig = DeviceConfig()
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


SECTIONS = tuple(fields(Config))
