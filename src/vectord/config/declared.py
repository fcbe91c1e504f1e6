"""Every setting, declared once: its name, default and meaning, its other names, and the values that it accepts.

The command line, the environment, the env file, the config file, `--print-config`, `.env.example` and
docs/configuration.md follow from these classes (settings.py derives them, sources.py reads the values).
`max_batch_tokens` makes the option `--max-batch-tokens` and the variable `VECTORD_MAX_BATCH_TOKENS`. A field's name is
unique over all sections. A product's names of these settings, and its own settings, are in its profile (profiles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

# Turns the value of a variable into the text that the setting accepts, or into None if it sets nothing here. A reader
# never fails: it passes on a text that it does not understand, and the setting rejects that.
ValueReader: TypeAlias = Callable[[str], str | None]
# Variables, the one that wins first, with readers for values in another form.
Names: TypeAlias = Mapping[str, ValueReader | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One setting, as its section declares it."""

    meaning: str
    flags: tuple[str, ...] = ()  # further options
    variables: Names = field(default_factory=dict)  # of libraries and standards; each is an option too
    limits: tuple[float, float] | None = None  # least and largest value
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str | None] = field(default_factory=dict)  # in lower case; None: the default
    pattern: tuple[str, str] | None = None  # a regular expression for the whole text, and its form in words
    verbatim: bool = False  # spaces around the value count
    secret: bool = False  # never printed
    of_profiles: bool = False  # only profiles set it, and only those that offer it let the operator do so


def setting(default: Any, meaning: str, **declared: Any) -> Any:
    """A field of a section, with its Declaration as metadata."""
    declaration = Declaration(meaning=meaning, **declared)
    return field(default=default, repr=not declaration.secret, metadata={"declaration": declaration})


def profile_setting(default: Any, meaning: str, **declared: Any) -> Any:
    """A setting that counts under some profiles only: those whose `[names]` has it."""
    return setting(default, meaning, of_profiles=True, **declared)


DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_REDIS_URL = (
    r"rediss?://([^/?#]*@)?([^/?#@:\[\]]+|\[[^/?#@\[\]]+\])?(:\d{1,5})?([/?#].*)?|unix://.+",
    "a URL such as redis://host:6379/0",
)


def cpu_if_none_visible(text: str) -> str | None:
    """-1 hides every GPU and means cpu. torch itself reads every other value."""
    return "cpu" if text == "-1" else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Models: which ones, from where, and how they are read."""

    models: tuple[str, ...] = setting(
        (),
        f"Models to serve: hub ids, folders or packages. Default: {DEFAULT_MODEL}.",
        flags=("--model",),
    )
    default_embedding_model: str | None = profile_setting(
        None, "Model served before all others; it embeds when a request names no model."
    )
    dense_embedding_model: str | None = profile_setting(
        None, "Model that makes the dense vectors when another model makes the sparse and ColBERT vectors."
    )
    reranker_model: str | None = profile_setting(
        None, "Reranker served after the embedding models; the first reranker is the default."
    )
    rerankers: tuple[str, ...] = profile_setting((), "Further rerankers.")
    served_model_name: tuple[str, ...] = setting((), "Names for clients, one for each model. Default: the model's id.")
    model_aliases: tuple[str, ...] = setting((), "Further names for clients: NAME=MODEL, of a served model.")
    lora: tuple[str, ...] = setting(
        (),
        "Adapters (LoRA, as peft saves them): NAME=FOLDER for the only model, else MODEL:NAME=FOLDER. Requests choose "
        "one with MODEL:NAME as the model's name.",
    )
    composites: tuple[str, ...] = setting(
        (), "Names that combine served models: NAME=dense:MODEL+sparse:MODEL+colbert:MODEL."
    )
    pinned_models: tuple[str, ...] = setting((), "Served names that load at start and are never unloaded when idle.")
    model_catalogue: str | None = setting(
        None, "YAML file with further models: name, hf_repo_id, handler.", flags=("--config-models",)
    )
    revision: str | None = setting(None, "Branch, tag or commit of the models on the hub.")
    lock_file: str | None = setting(
        None, "Lock file from `vectord pull`: models use its commits, and a file that differs stops the start."
    )
    model_path: str | None = setting(
        None, "Folder of model folders, searched before the hub: for BAAI/bge-m3 at BAAI/bge-m3 and at bge-m3."
    )
    hf_home: str | None = setting(
        None,
        "Hugging Face's folder; models are cached in its hub/. hub_cache takes precedence, unless hf_home comes from a "
        "source of higher priority.",
        variables={"HF_HOME": None},
    )
    hub_cache: str | None = setting(
        None, "Folder of the model cache.", variables=dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    )
    hf_endpoint: str | None = setting(None, "URL of the hub or of a mirror.", variables={"HF_ENDPOINT": None})
    hf_token: str | None = setting(
        None,
        "Token for gated models; sent only with downloads.",
        variables=dict.fromkeys(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")),
        secret=True,
    )
    offline: bool = setting(
        False,
        "Never contact the hub; use local files only.",
        variables=dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
    )
    pull_allow: tuple[str, ...] = setting(
        ("*",),
        "Patterns of the hub ids that the admin key may pull while the server runs, such as BAAI/*. With lock_file, "
        "only its models; with offline, none.",
    )
    task: Literal["auto", "embed", "rerank", "classify"] = setting(
        "auto",
        "Task of models whose files do not state one; auto: the task that each was trained for.",
        synonyms={"sentence-similarity": None, "feature-extraction": None, "embedding": "embed", "score": "rerank"},
    )
    pooling: Literal["cls", "mean", "last", "max", "splade", "none"] | None = setting(
        None,
        "Pooling, in place of the model's own; splade works with SPLADE models only; none: only a vector for each "
        "token.",
        synonyms={"last-token": "last", "auto": None, "rank": None},
    )
    plain_mean: tuple[str, ...] = profile_setting(
        (),
        "Embedding models whose vector is the mean over all tokens of the last hidden states, instead of their own "
        "pooling and Dense modules. pooling, and a pooling in model_catalogue, take precedence. none: no model.",
    )
    dense_path: str | None = setting(
        None, "Folder in the model's folder with the Dense module to use, such as 2_Dense_1024."
    )
    cutoff_layer: int | None = setting(
        None,
        "Layer whose head scores pairs, for rerankers with a head after each of their last layers. Later layers do not "
        "run. Default: the last layer.",
        limits=(1, 1024),
    )
    allow_unknown_config: tuple[str, ...] = setting(
        (),
        "Keys of a model's configuration files that are ignored although this server does not know them. The vectors "
        "may then differ from the model's own.",
    )
    default_prompt: str | None = setting(
        None, "Text before each input when a request names no prompt. Excludes default_prompt_name.", verbatim=True
    )
    default_prompt_name: str | None = setting(None, "Name of the model's prompt to use when a request names no prompt.")
    chat_template: str | None = setting(
        None,
        "Jinja template for `messages`, in place of the models' own: a file, or the template itself. It runs in "
        "jinja2's sandbox.",
        verbatim=True,
    )
    max_length: int | None = setting(
        None, "Most tokens in a text, or in a reranker's pair or list, if the model reads more.", limits=(1, 1_048_576)
    )
    bge_embed_max_length: int | None = profile_setting(
        None, "Most tokens in a text for embedding models of the BERT family.", limits=(1, 8192)
    )
    qwen_embed_max_length: int | None = profile_setting(
        None, "Most tokens in a text for Qwen embedding models.", limits=(1, 32_768)
    )
    bge_rerank_max_length: int | None = profile_setting(
        None, "Most tokens in a pair for cross-encoders; BAAI recommends 1024 for its own.", limits=(1, 8192)
    )
    qwen_rerank_max_length: int | None = profile_setting(
        None, "Most tokens in a pair for rerankers that are language models.", limits=(128, 32_768)
    )

    @property
    def in_order(self) -> tuple[str, ...]:
        """Every model to serve, once. The first one that supports a request answers it."""
        embedding = [self.default_embedding_model, self.dense_embedding_model, *self.models]
        named = [name for name in embedding if name is not None] or [DEFAULT_MODEL]
        reranking = [name for name in (self.reranker_model, *self.rerankers) if name is not None]
        return tuple(dict.fromkeys((*named, *reranking)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Device: backend, device, number format and batch size."""

    backend: str = setting(
        "auto",
        "openvino, torch, onnx, onnxruntime, transformers, handler or fake; auto: torch if it finds a GPU, else "
        "openvino, else whichever backend can run the model.",
    )
    device: str = setting(
        "auto",
        "auto (CUDA, else MPS, else the CPU), cpu, cuda, cuda:N, mps, cuda-or-cpu (warns without CUDA), several that "
        "share the work such as cuda:0,cuda:1, or cuda:all for every GPU. A device named twice holds the model twice.",
        variables={"CUDA_VISIBLE_DEVICES": cpu_if_none_visible},
        pattern=(
            r"auto|cpu(,cpu){0,63}|cuda(:\d{1,3})?(,cuda(:\d{1,3})?){0,63}|cuda:all|mps|cuda-or-cpu",
            "auto, cpu, cuda, cuda:N, cuda:all, mps, cuda-or-cpu, or several such as cuda:0,cuda:1",
        ),
    )
    dtype: str = setting(
        "auto",
        "Number format; auto: the fastest accurate one on the device; int8, fp8: linear layers only; int8-weights and "
        "int4-weights: their matrices have 8 or 4 bits, on the CPU. On a device that lacks them, bfloat16, float16 and "
        "int8 are replaced, which is logged; fp8, int8-weights and int4-weights are refused.",
        choices=("auto", "float32", "bfloat16", "float16", "int8", "fp8", "int8-weights", "int4-weights"),
        synonyms={"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32"},
    )
    onnx_file: str | None = setting(
        None,
        "ONNX file in the model's folder for the backends onnx and onnxruntime, such as onnx/model_O4.onnx. Default: "
        "the file whose name matches dtype.",
    )
    tf32: bool = setting(False, "On CUDA: multiply float32 in TF32, which is faster and has 10 bits of fraction.")
    device_memory_mib: int | None = setting(
        None,
        "On CUDA: MiB of device memory for all models together, without the driver's. Default: all of it.",
        limits=(64, 2**24),
    )
    batch_sizes: tuple[str, ...] = profile_setting(
        (),
        "On CUDA: most texts in a forward pass, if max_batch_requests is unset, by text length and device memory, as "
        "TOKENS:GIB:TEXTS. The first entry applies whose TOKENS are at least the model's maximum and whose GIB are "
        "less than the device's memory.",
    )
    num_threads: int | None = setting(
        None,
        "CPU threads. Default and maximum: the cgroup's quota and the CPU affinity, rounded down.",
        limits=(1, 1024),
    )
    max_batch_tokens: int | None = setting(
        None, "Most tokens in a forward pass. Default: the backend's measured best value.", limits=(1, 1_048_576)
    )
    max_batch_requests: int | None = setting(None, "Most texts in a forward pass.", limits=(1, 65_536))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine: limits, queue, cache and truncation."""

    max_client_batch_size: int = setting(2048, "Most inputs in a request.", limits=(1, 200_000))
    max_concurrent_requests: int = setting(
        4096,
        "Most requests in the server at once, queued ones included; further ones are refused. From 4 on, and without "
        "max_running_requests, clients with fewer than a sixteenth of them may exceed it, by a quarter in all; some "
        "profiles count exactly.",
        limits=(1, 1_000_000),
    )
    max_running_requests: int | None = profile_setting(
        None,
        "Most requests that run at once; further ones wait for queue_timeout_s and are then refused. Default: "
        "max_concurrent_requests.",
        limits=(1, 1_000_000),
    )
    count_running_requests: bool = profile_setting(
        True, "Whether max_concurrent_requests counts requests for vectors that no longer wait for a batch."
    )
    max_concurrent_reranks: int | None = profile_setting(
        None,
        "Most rerank requests at once, counted apart from all others. Default: they count among "
        "max_concurrent_requests.",
        limits=(1, 1_000_000),
    )
    queue_timeout_s: float = setting(
        0.0,
        "Seconds that a request waits for admission when max_concurrent_requests is reached; 0: it is refused at once. "
        "At most as many requests wait as run.",
        limits=(0, 3600),
    )
    max_queue_wait_s: float = setting(
        30.0,
        "Predicted wait in seconds above which a request is refused with 429 and Retry-After.",
        limits=(0.001, 86_400),
    )
    request_timeout_s: float = setting(
        0.0,
        "Seconds until an unanswered request gets 504; 0: no limit. The header x-vectord-timeout-ms lowers it.",
        limits=(0, 86_400),
    )
    rerank_timeout_s: float | None = profile_setting(
        None,
        "Seconds until an unfinished rerank request gets 504, and until a forward pass of a reranker counts as hung; "
        "0: no limit. Default: requests have no limit, and forward_timeout_s applies.",
        limits=(0, 86_400),
    )
    forward_timeout_s: float = setting(
        300.0,
        "Seconds until a forward pass counts as hung: its texts fail and a new thread replaces its thread; 0: never.",
        limits=(0, 86_400),
    )
    gpu_forward_timeout_s: float | None = profile_setting(
        None,
        "forward_timeout_s on a GPU, where it takes precedence unless forward_timeout_s comes from a source of higher "
        "priority. Default: forward_timeout_s.",
        limits=(0, 86_400),
    )
    qwen_rerank_batch_size: int | None = profile_setting(
        None, "Most pairs in a forward pass of a reranker that is a language model.", limits=(1, 65_536)
    )
    max_reranking_batch_size: int | None = profile_setting(
        None, "Most pairs in a forward pass of any reranker.", limits=(1, 65_536)
    )
    join_requests: Literal["always", "window", "never"] = profile_setting(
        "always",
        "Whether a forward pass may have texts of several requests; window: if batch_window_ms is not 0.",
    )
    batch_window_ms: float = setting(
        0.0, "Milliseconds that an idle stream waits for more texts; 0: it starts at once.", limits=(0, 1000)
    )
    model_loading: Literal["start", "first-use", "defaults"] = setting(
        "start",
        "When models load, pinned ones aside; defaults: the first embedding model and the first reranker at start, the "
        "others on their first request.",
    )
    required_models: Literal["any", "first", "all"] = setting(
        "any",
        "Models that must answer before the server is ready; all: a model that cannot be loaded stops the start.",
    )
    model_idle_s: float = setting(
        0.0, "Seconds without requests after which a model is unloaded; 0: never.", limits=(0, 10_000_000)
    )
    model_memory_bytes: int | None = setting(
        None,
        "Bytes of weights that may be loaded at once; the least recently used model makes room.",
        limits=(1, 2**50),
    )
    cache_bytes: int = setting(64 * 2**20, "Bytes for vectors of earlier texts; 0: no cache.", limits=(0, 2**50))
    cache_texts: int | None = profile_setting(
        None, "Most cached texts of each model, in place of cache_bytes; 0: no cache.", limits=(0, 2**40)
    )
    share_cache_between_keys: bool = setting(
        False,
        "Let named keys find each other's cached vectors; response times then show which texts others have sent. "
        "Default: each named key has its own part of the cache.",
    )
    warmup_batches: int = profile_setting(
        0, "Batches that each stream of a model runs before it is ready, besides the self-test.", limits=(0, 1000)
    )
    warmup_batch_size: int = profile_setting(1, "Texts in such a batch.", limits=(1, 65_536))
    shared_cache: str | None = setting(
        None,
        "Redis in which replicas share cached vectors, such as redis://host:6379/0. Trust it as you trust them. "
        "Requires the extra redis.",
        pattern=_REDIS_URL,
        secret=True,
    )
    shared_cache_secret: str | None = setting(
        None,
        "Secret of at least 16 characters that signs shared vectors; unsigned ones are ignored.",
        pattern=(r"(?s).{16,4096}", "a text of 16 to 4096 characters"),
        secret=True,
    )
    shared_cache_secret_file: str | None = setting(None, "File with shared_cache_secret.")
    shared_cache_ttl_s: int = 7 * 86_400  # how long shared vectors are kept
    tokenization_workers: int | None = setting(
        None, "Threads that tokenize. Default: as many as CPU threads.", limits=(1, 1024)
    )
    force_dimensions: bool = setting(
        False, "Cut dense vectors to any requested width, also for models that were not trained for it."
    )
    auto_truncate: bool | None = setting(
        None, "Truncate texts that are too long (true) or refuse them (false). Default: as each API does."
    )

    @property
    def joins_requests(self) -> bool:
        """Whether a forward may have texts of several requests."""
        return self.join_requests == "always" or (self.join_requests == "window" and self.batch_window_ms > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Server: address, keys, and limits of requests and responses."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8000, "Port to listen on; 0: any free one.", flags=("-p",), limits=(0, 65_535))
    front_ends: int = setting(
        0,
        "HTTP processes in front of the engine's process, for loads above one event loop; 1: one process in all; 0: 2 "
        "or 4 with an NVIDIA GPU, torch and at least 4 cores, else 1.",
        limits=(0, 64),
    )
    grpc_port: int | None = setting(
        None,
        "Port of the gRPC services; 0: any free one. Default: no gRPC. Requires the extra grpc.",
        limits=(0, 65_535),
    )
    prometheus_port: int | None = setting(
        None,
        "Separate port for /metrics, which --port then does not have; 0: any free one.",
        limits=(0, 65_535),
    )
    url_prefix: str | None = setting(
        None,
        "A path such as /api/models; all routes are also served below it.",
        pattern=(r"(/[A-Za-z0-9._~-]+)*/?", "a path such as /api/models"),
    )
    api_key: str | None = setting(
        None, "Key that every request needs, except for health, metrics and docs.", secret=True
    )
    api_token: str | None = profile_setting(
        None,
        "A second key with the rights of api_key. With both, each is one client: in the log, limits and fair shares.",
        secret=True,
    )
    admin_key: str | None = setting(
        None,
        "Key for loading, unloading, pulling and removing models. Without it, or a key with admin = true in "
        "api_keys_file, those routes do not exist.",
        secret=True,
    )
    metrics_key: str | None = setting(
        None,
        "Key that /metrics needs; the admin key opens it as well. Without it, or prometheus_port, anyone may read "
        "/metrics, and it leaves out the names of keys.",
        secret=True,
    )
    grafana_url: str | None = setting(
        None,
        "Address of the server's board in Grafana; the console links to it.",
        pattern=(r"https?://[^\s<>\"']+", "a URL such as https://grafana.example/d/vectord"),
    )
    public_model_names: bool | None = profile_setting(
        None,
        "Whether pages without a key (/health, /health/ready, / and a /metrics that anyone may read) name the models. "
        "Default: unless the server needs a key.",
    )
    api_keys_file: str | None = setting(
        None,
        "TOML file of named keys, each with its models, requests_per_minute, tokens_per_minute, lane and admin. "
        "`vectord key NAME` makes an entry. The server reloads the file when it changes.",
    )
    rate_limit_requests_per_minute: int | None = setting(
        None,
        "Requests per minute from one address, on every route; 0: no limit. Default: some products' own limits, on "
        "their routes.",
        limits=(0, 1_000_000),
    )
    rate_limit_burst_size: int | None = setting(
        None,
        "Requests that a rate-limited address may send at once after a pause. Default: those of a minute, at most 120.",
        limits=(1, 1_000_000),
    )
    redis_url: str | None = setting(
        None,
        "Redis in which replicas share the counters of limits, such as redis://host:6379/0. Default: each replica "
        "counts by itself. Requires the extra redis.",
        pattern=_REDIS_URL,
        secret=True,
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses and networks of proxies whose X-Forwarded-For names the client."
    )
    cors_allow_origin: tuple[str, ...] = setting(
        (),
        "Origins whose pages may call this server from a browser, such as https://example.com or http://localhost:*; "
        "*: all. Without keys, the server refuses all other pages, and host names that are neither local nor listed "
        "here.",
        pattern=(r"\*|null|[^\s/:]+://[^\s/]*/?", "origins such as https://example.com, null, or *"),
    )
    tls_enabled: bool | None = profile_setting(None, "Serve TLS. Default: if tls_cert_file and tls_key_file are set.")
    tls_cert_file: str | None = setting(None, "PEM file of the certificate, followed by its chain.")
    tls_key_file: str | None = setting(None, "PEM file of the certificate's private key, without a password.")
    payload_limit: int = setting(
        32 * 2**20, "Most bytes in a request body, before and after decompression; 413 above.", limits=(1024, 2**40)
    )
    allow_media_urls: tuple[str, ...] = setting(
        (),
        "Hosts from which images are fetched that requests name by URLs, at most payload_limit bytes a request; "
        "*: all with public addresses.",
        pattern=(r"\*|[^\s/:@*]+", "names of hosts such as images.example.com, or *"),
    )
    batch_dir: str | None = setting(
        None,
        "Folder for files and batches, whose routes exist only with it. One server may use it at a time.",
    )
    batch_disk_limit: int = setting(
        10 * 2**30, "Most bytes in batch_dir; a file has at most payload_limit.", limits=(2**20, 2**50)
    )
    batch_retention_hours: float = setting(
        168.0, "Hours until a file of batch_dir is deleted, unless it expires earlier.", limits=(1, 100_000)
    )
    max_connections: int | None = setting(
        None,
        "Most HTTP connections of a process; beyond it only probes are answered. Default: as many as it has file "
        "descriptors for, at most 16384.",
        limits=(1, 1_000_000),
    )
    max_connections_per_address: int | None = setting(
        None,
        "Most HTTP connections of a client's address to a process; behind a trusted proxy, most requests at a time. "
        "Default: three quarters of max_connections.",
        limits=(1, 1_000_000),
    )
    header_limit_bytes: int = 65_536  # of the request line and headers; 431 above
    compress_min_bytes: int = setting(
        4096,
        "Least bytes in a response that is compressed for clients that accept zstd or gzip; 0: no compression.",
        limits=(0, 2**40),
    )
    shutdown_timeout_secs: float = setting(
        30.0, "Seconds that accepted requests get to finish after SIGTERM.", limits=(0, 3600)
    )
    own_token_ids: bool = profile_setting(
        False,
        "Read every list of token ids on /v1/embeddings as ids of the model. Otherwise only ids between its special "
        "tokens are, because most clients send ids of another vocabulary.",
    )
    imitates: str | None = setting(
        None,
        "API that this server imitates in /health, GET /, metrics and log lines, in addition to its own. A profile "
        "sets it to its product's.",
    )
    dialects: tuple[str, ...] = setting(
        (),
        "APIs to serve; the first one answers on a path that several have. Default: all, those of a profile first.",
    )
    product: Mapping[str, Any] = field(default_factory=dict)  # the own settings of the profile's product, by name

    @property
    def metrics_are_private(self) -> bool:
        """Whether /metrics may show the names of keys."""
        return self.metrics_key is not None or self.prometheus_port is not None

    @property
    def accepted_keys(self) -> dict[str, str]:
        """The keys that give access to the server, by name. Without any, it is open to everyone."""
        named = {"api_key": self.api_key, "api_token": self.api_token if self.api_token != self.api_key else None}
        return {name: key for name, key in named.items() if key is not None}

    @property
    def demands_key(self) -> bool:
        return bool(self.accepted_keys) or self.api_keys_file is not None

    @property
    def names_models_to_anyone(self) -> bool:
        return not self.demands_key if self.public_model_names is None else self.public_model_names


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Telemetry: logs, metrics and traces."""

    log_level: str = setting(
        "info",
        "Lowest level that is logged.",
        choices=("debug", "info", "warning", "error"),
        synonyms={"trace": "debug", "warn": "warning", "critical": "error", "fatal": "error"},
    )
    log_format: Literal["auto", "console", "text", "json"] = setting(
        "auto",
        "auto: console on a terminal, else text. console: short lines for people; text: lines of NAME=VALUE; json: for "
        "collectors.",
        synonyms={"pretty": "console", "plain": "text", "compact": "text"},
    )
    access_log: bool = setting(True, "Log a line for each request.")
    enable_metrics: bool = setting(True, "Serve /metrics.")
    otlp_endpoint: str | None = setting(
        None,
        "URL of the OpenTelemetry collector for traces, such as http://host:4317. Default: no traces. Requires the "
        "extra otlp.",
        variables=dict.fromkeys(("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")),
        pattern=(
            r"(https?://)?([^\s/:@]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/[^\s?#]*)?",
            "a URL such as http://host:4317",
        ),
    )
    otlp_protocol: Literal["auto", "grpc", "http/protobuf"] = setting(
        "auto",
        "Protocol of the collector; auto: HTTP on port 4318 and for /v1/traces, else gRPC.",
        variables=dict.fromkeys(("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")),
        synonyms={"http": "http/protobuf", "http/json": "http/protobuf"},
    )
    otlp_service_name: str = setting(
        "vectord",
        "Name of this service in traces.",
        variables={"OTEL_SERVICE_NAME": None, "OTEL_RESOURCE_ATTRIBUTES": service_name},
    )
    otlp_service_version: str | None = profile_setting(
        None, "Version of this service in traces. Default: vectord's version."
    )
    disable_spans: bool = setting(
        False,
        "Make no traces, even with a collector.",
        variables={"OTEL_TRACES_EXPORTER": true_without_otlp, "OTEL_SDK_DISABLED": None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. `Config()` holds the defaults."""

    model: ModelConfig = ModelConfig()
    device: DeviceConfig = DeviceConfig()
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


SECTIONS: Mapping[str, type[Any]] = {section.name: type(section.default) for section in fields(Config)}
