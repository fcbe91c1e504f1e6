"""Every setting once: name, unit, default, one line of meaning, other names it goes by.

The command line, the environment, `.env`, the config file, `--print-config`, `.env.example` and
docs/configuration.md are all derived from these classes, by way of settings.py (sources.py reads, nobody else does).
`--max-batch-tokens`, `MAX_BATCH_TOKENS` and `VECTORD_MAX_BATCH_TOKENS` follow from `max_batch_tokens`; only further
names stand here. Field names are unique over all sections.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

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
    secret: bool = False,
) -> Any:
    """A dataclass field and how it is written.

    env, flags: names beside the derived ones, first wins. synonyms: other words for a value, in lower case; None for
    "as if nothing were said". pattern: a regular expression that the whole text must match. reads: for one name, what
    its text means in our words, or None where it is not meant for us; a flag named there may stand without a value.
    secret: never printed.
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
            "secret": secret,
        },
    )


# --- names that other programs use too ------------------------------------------------------------------------


def address_only(text: str) -> str | None:
    """An address or localhost. Shells and containers set HOSTNAME to the machine's name, which means nothing here."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text if text == "localhost" else None
    return text


def no_service_link(text: str) -> str | None:
    """Not the tcp://10.0.0.1:80 that Kubernetes puts into NAME_PORT for a service called NAME."""
    return None if "://" in text else text


def first_bare_level(text: str) -> str | None:
    """`info` of RUST_LOG's `info,tower=debug`; what is said for single targets has no meaning here."""
    return next((part.strip() for part in text.split(",") if part.strip() and "=" not in part), None)


def json_lines(text: str) -> str:
    """TEI's switch, as a log format."""
    return "text" if text.lower() in {"false", "f", "0", "no", "n", "off"} else "json"


DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Models: which, from where, and how they are read."""

    models: tuple[str, ...] = setting(
        (DEFAULT_MODEL,),
        "Models to serve: hub ids, folders, packages. The first is the default.",
        env=("MODEL_ID", "MODEL_NAMES", "INFINITY_MODEL_ID"),
        flags=("--model-id",),
    )
    revision: str | None = setting(None, "Hub revision, branch or commit of the models.", env=("INFINITY_REVISION",))
    served_model_name: tuple[str, ...] = setting(
        (), "Names clients use, one a model; default: the id itself.", env=("INFINITY_SERVED_MODEL_NAME",)
    )
    hf_home: str | None = setting(None, "Folder of the Hugging Face cache.", env=("INFINITY_HOME",))
    hf_token: str | None = setting(
        None,
        "Token for gated models; used by downloads alone.",
        env=("HF_API_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        secret=True,
    )
    offline: bool = setting(
        False, "Never ask the hub; local files only.", env=("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    pooling: Literal["cls", "mean", "last", "max"] | None = setting(
        None,
        "Pooling instead of the model's own.",
        env=("INFINITY_POOLING_METHOD",),
        synonyms={"last-token": "last", "auto": None},
    )
    task: Literal["auto", "embed", "rerank", "classify"] = setting(
        "auto",
        "What the models are wanted for, where their files leave it open; auto: what each was made for.",
        choices=("auto", "embed", "rerank", "classify"),
    )
    default_prompt_name: str | None = setting(None, "Prompt put before texts when the request names none.")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Device: what computes, in which numbers, and how much at once."""

    backend: str = setting(
        "auto",
        "openvino, torch, onnx, transformers, handler or fake; auto: torch for a GPU that it finds, else openvino, and "
        "what a model needs that neither runs.",
    )
    device: str = setting(
        "auto",
        "auto, cpu, cuda, cuda:N or mps.",
        env=("MODEL_DEVICE", "INFINITY_DEVICE"),
        pattern=r"auto|cpu|cuda(:\d{1,3})?|mps",
    )
    dtype: str = setting(
        "auto",
        "auto: what the device computes in best. What it cannot compute in is replaced, with a warning.",
        env=("INFINITY_DTYPE",),
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    num_threads: int | None = setting(
        None,
        "Processor threads; default: what cgroup quota and affinity allow, rounded down.",
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
        env=("BATCH_MAX_ITEMS", "INFINITY_BATCH_SIZE"),
        at_least=1,
        at_most=65_536,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine: limits, waiting, cache, and over-long texts."""

    max_client_batch_size: int = setting(
        2048, "Inputs one request may carry.", env=("INFINITY_MAX_CLIENT_BATCH_SIZE",), at_least=1, at_most=200_000
    )
    max_concurrent_requests: int = setting(
        4096, "Requests under way at once; more are refused with 429.", at_least=1, at_most=1_000_000
    )
    max_queue_wait_s: float = setting(
        30.0,
        "Predicted wait beyond which a request is refused with 429 and Retry-After.",
        at_least=0.001,
        at_most=86_400,
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
        64 * 2**20, "Room for vectors of texts seen before; 0: no cache.", at_least=0, at_most=2**50
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
        env=("INFINITY_HOST", "API_HOST", "HOSTNAME"),
        flags=("--hostname",),
        reads={"HOSTNAME": address_only},
    )
    port: int = setting(
        8000,
        "Port to listen on; 0: any free one.",
        env=("INFINITY_PORT", "API_PORT"),
        flags=("-p",),
        at_least=0,
        at_most=65_535,
        reads=dict.fromkeys(("VECTORD_PORT", "PORT", "INFINITY_PORT", "API_PORT"), no_service_link),
    )
    api_key: str | None = setting(
        None,
        "Key that every request must bring, but for health, metrics and docs.",
        env=("API_TOKEN", "INFINITY_API_KEY", "LLAMA_API_KEY"),
        secret=True,
    )
    admin_key: str | None = setting(
        None, "Key for loading and unloading models; without it those routes do not exist.", secret=True
    )
    payload_limit: int = setting(
        32 * 2**20, "Bytes a body may have, after decompression too; 413 above.", at_least=1024, at_most=2**40
    )
    header_limit_bytes: int = setting(
        65_536, "Bytes that request line and headers may have; 431 above.", at_least=1024, at_most=2**30
    )
    gzip_min_bytes: int = setting(
        4096, "Answers from this size are gzipped for clients that accept it; 0: none.", at_least=0, at_most=2**40
    )
    shutdown_timeout_secs: float = setting(
        30.0, "Seconds that accepted requests get to finish after SIGTERM.", at_least=0, at_most=3600
    )
    dialects: tuple[str, ...] = setting(
        ("openai", "tei", "vectord"), "Which APIs are served; on a path that several speak the first one answers."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Telemetry: logs and metrics."""

    log_level: str = setting(
        "info",
        "How much is logged.",
        env=("INFINITY_LOG_LEVEL", "RUST_LOG"),
        choices=("debug", "info", "warning", "error"),
        synonyms={"trace": "debug", "warn": "warning", "critical": "error", "fatal": "error"},
        reads={"RUST_LOG": first_bare_level},
    )
    log_format: Literal["text", "json"] = setting(
        "text",
        "text for people, json for collectors.",
        env=("JSON_OUTPUT",),
        flags=("--json-output",),
        reads={"JSON_OUTPUT": json_lines, "--json-output": json_lines},
    )
    enable_metrics: bool = setting(True, "Serve /metrics.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it. `Config()` is what runs when nobody says anything."""

    model: ModelConfig = ModelConfig()
    device: DeviceConfig = DeviceConfig()
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


SECTIONS = tuple(fields(Config))
