"""Profiles: every name of the servers that vectord replaces, its effect, and that it counts under its profile only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config import Config
from vectord.config.profiles import make_profile
from vectord.config.settings import SETTINGS
from vectord.errors import ConfigError
from vectord.products.common.profiles import profiles

# From the documentation of the servers, and from sources. `default` has the names of vectord, libraries and standards.
MEANT: Mapping[str, Sequence[tuple[str, str, dict[str, Any]]]] = {
    "default": [
        ("REVISION", "main", {"revision": "main"}),
        ("TOKENIZATION_WORKERS", "2", {"tokenization_workers": 2}),
        ("DTYPE", "float16", {"dtype": "float16"}),
        ("POOLING", "last-token", {"pooling": "last"}),
        ("MAX_CONCURRENT_REQUESTS", "4", {"max_concurrent_requests": 4}),
        ("MAX_BATCH_TOKENS", "1384", {"max_batch_tokens": 1384}),
        ("MAX_BATCH_REQUESTS", "5", {"max_batch_requests": 5}),
        ("MAX_CLIENT_BATCH_SIZE", "2", {"max_client_batch_size": 2}),
        ("PORT", "8080", {"port": 8080}),
        ("API_KEY", "hush", {"api_key": "hush"}),
        ("CUDA_VISIBLE_DEVICES", "-1", {"device": "cpu"}),
        ("MODELS", "bge-m3,embedding-gemma-300m", {"models": ("bge-m3", "embedding-gemma-300m")}),
        ("HF_HOME", "./models", {"hf_home": "./models"}),
        ("HF_TOKEN", "hush", {"hf_token": "hush"}),
        ("HF_HUB_OFFLINE", "1", {"offline": True}),
        ("BATCH_WINDOW_MS", "6", {"batch_window_ms": 6.0}),
        ("ENABLE_METRICS", "0", {"enable_metrics": False}),
        ("LOG_LEVEL", "WARNING", {"log_level": "warning"}),
        ("SHUTDOWN_TIMEOUT_SECS", "30", {"shutdown_timeout_secs": 30.0}),
        ("HUGGING_FACE_HUB_TOKEN", "hush", {"hf_token": "hush"}),
        ("LOG_FORMAT", "json", {"log_format": "json"}),
        ("HUGGINGFACE_HUB_CACHE", "/data", {"hub_cache": "/data"}),
        ("HF_HUB_CACHE", "/data", {"hub_cache": "/data"}),
        ("SERVED_MODEL_NAME", "mine", {"served_model_name": ("mine",)}),
        ("POOLING", "splade", {"pooling": "splade"}),
        ("DENSE_PATH", "2_Dense_1024", {"dense_path": "2_Dense_1024"}),
        ("DEFAULT_PROMPT", "query: ", {"default_prompt": "query: "}),
        ("DEFAULT_PROMPT_NAME", "query", {"default_prompt_name": "query"}),
        ("AUTO_TRUNCATE", "true", {"auto_truncate": True}),
        ("PAYLOAD_LIMIT", "2000000", {"payload_limit": 2_000_000}),
        ("URL_PREFIX", "/api/models", {"url_prefix": "/api/models"}),
        ("TRANSFORMERS_OFFLINE", "1", {"offline": True}),
        ("HF_ENDPOINT", "https://mirror.test", {"hf_endpoint": "https://mirror.test"}),
        ("MODEL_PATH", "/models", {"model_path": "/models"}),
        ("NUM_THREADS", "2", {"num_threads": 2}),
        ("RATE_LIMIT_REQUESTS_PER_MINUTE", "600", {"rate_limit_requests_per_minute": 600}),
        ("RATE_LIMIT_BURST_SIZE", "20", {"rate_limit_burst_size": 20}),
        (
            "CORS_ALLOW_ORIGIN",
            "https://a.test,https://b.test",
            {"cors_allow_origin": ("https://a.test", "https://b.test")},
        ),
        ("REDIS_URL", "redis://host:6379/0", {"redis_url": "redis://host:6379/0"}),
        ("TRUSTED_PROXIES", "10.0.0.0/8", {"trusted_proxies": ("10.0.0.0/8",)}),
        ("API_KEYS_FILE", "keys.toml", {"api_keys_file": "keys.toml"}),
        ("OTLP_ENDPOINT", "http://collector:4317", {"otlp_endpoint": "http://collector:4317"}),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317", {"otlp_endpoint": "http://localhost:4317"}),
        ("OTLP_SERVICE_NAME", "s3-embedding.server", {"otlp_service_name": "s3-embedding.server"}),
        ("OTEL_SERVICE_NAME", "embedding-inference-api", {"otlp_service_name": "embedding-inference-api"}),
        ("OTEL_RESOURCE_ATTRIBUTES", "host.name=a,service.name=my%20search", {"otlp_service_name": "my search"}),
        ("OTEL_TRACES_EXPORTER", "none", {"disable_spans": True}),
        ("OTEL_SDK_DISABLED", "true", {"disable_spans": True}),
        ("DISABLE_SPANS", "true", {"disable_spans": True}),
        ("GRPC_PORT", "50051", {"grpc_port": 50051}),
        ("PROMETHEUS_PORT", "9000", {"prometheus_port": 9000}),
    ],
    "embedding-server": [
        ("MODEL_ID", "./Qwen3-Embedding-0.6B", {"models": ("./Qwen3-Embedding-0.6B",)}),
        ("HOSTNAME", "0.0.0.0", {"host": "0.0.0.0"}),
        ("JSON_OUTPUT", "true", {"log_format": "json"}),
        ("RUST_LOG", "debug,embedding_inference_api=trace", {"log_level": "debug"}),
    ],
    "smart-embedder": [
        ("BGE_EMBED_MAX_LENGTH", "1024", {"bge_embed_max_length": 1024}),
        ("MAX_INPUT_LENGTH", "2048", {"bge_embed_max_length": 2048}),
        ("QWEN_EMBED_MAX_LENGTH", "32768", {"qwen_embed_max_length": 32768}),
        ("BGE_RERANK_MAX_LENGTH", "1024", {"bge_rerank_max_length": 1024}),
        ("QWEN_RERANK_MAX_LENGTH", "4096", {"qwen_rerank_max_length": 4096}),
        ("DENSE_EMBEDDING_MODEL", "Qwen/Qwen3-Embedding-0.6B", {"dense_embedding_model": "Qwen/Qwen3-Embedding-0.6B"}),
        ("RERANKER_MODEL", "Qwen/Qwen3-Reranker-0.6B", {"reranker_model": "Qwen/Qwen3-Reranker-0.6B"}),
        ("API_TOKEN", "hush", {"api_token": "hush"}),
        ("MAX_QUEUE_SIZE", "200", {"max_concurrent_requests": 200}),
        ("MAX_SENTENCES_PER_REQUEST", "128", {"max_sentences_per_request": 128}),
        ("MAX_RERANK_PASSAGES", "128", {"max_rerank_passages": 128}),
        ("MULTI_GPU_DEVICES", "['cuda:0', 'cuda:1']", {"device": "cuda:0,cuda:1"}),
        ("MULTI_GPU_DEVICES", "cuda:0, cuda:1", {"device": "cuda:0,cuda:1"}),
        ("REQUEST_TIMEOUT", "90", {"request_timeout_s": 90.0}),
        ("RERANK_GPU_TIMEOUT", "60", {"rerank_timeout_s": 60.0}),
        ("GPU_PROCESS_TIMEOUT", "15", {"forward_timeout_s": 15.0, "gpu_forward_timeout_s": None}),
        ("QWEN_RERANK_BATCH_SIZE", "16", {"qwen_rerank_batch_size": 16}),
        ("MAX_SENTENCE_CHARS", "20000", {"max_sentence_chars": 20000}),
        ("MAX_TOTAL_CHARS_PER_REQUEST", "250000", {"max_total_chars_per_request": 250_000}),
        ("MAX_RERANK_TEXT_CHARS", "20000", {"max_rerank_text_chars": 20000}),
        ("MAX_RERANK_TOTAL_CHARS", "250000", {"max_rerank_total_chars": 250_000}),
        ("RERANK_MAX_QUEUE", "32", {"max_concurrent_reranks": 32}),
    ],
    "simple-inference-server": [
        ("MAX_QUEUE_SIZE", "200", {"max_concurrent_requests": 200}),
        ("MODEL_NAMES", "bge-m3", {"models": ("bge-m3",)}),
        ("MODEL_CONFIG", "configs/model_config.yaml", {"model_catalogue": "configs/model_config.yaml"}),
        ("MODEL_DEVICE", "cuda:1", {"device": "cuda:1"}),
        ("MAX_CONCURRENT", "1", {"max_running_requests": 1}),
        ("MAX_BATCH_SIZE", "32", {"max_client_batch_size": 32}),
        ("MAX_TEXT_CHARS", "20000", {"max_text_chars": 20_000}),
        ("ENABLE_BATCHING", "0", {"join_requests": "never"}),
        ("ENABLE_WARMUP", "0", {"warmup_batches": 0}),
        ("WARMUP_STEPS", "2", {"warmup_batches": 2}),
        ("WARMUP_BATCH_SIZE", "8", {"warmup_batch_size": 8}),
        ("BATCH_WINDOW_MAX_SIZE", "16", {"max_batch_requests": 16}),
        ("BATCH_MAX_SIZE", "16", {"max_batch_requests": 16}),
        ("QUEUE_TIMEOUT_SEC", "2.0", {"queue_timeout_s": 2.0}),
        ("EMBEDDING_CACHE_SIZE", "0", {"cache_texts": 0}),
        ("EMBEDDING_CACHE_SIZE", "256", {"cache_texts": 256}),
        ("BATCH_MAX_ITEMS", "32", {"max_batch_requests": 32}),
    ],
    "semantic-explorer": [
        ("RERANKER_MODEL", "Qwen/Qwen3-Reranker-0.6B", {"reranker_model": "Qwen/Qwen3-Reranker-0.6B"}),
        ("API_HOST", "0.0.0.0", {"host": "0.0.0.0"}),
        ("API_PORT", "8090", {"port": 8090}),
        ("DEFAULT_EMBEDDING_MODEL", "BAAI/bge-small-en-v1.5", {"default_embedding_model": "BAAI/bge-small-en-v1.5"}),
        ("DEFAULT_RERANKING_MODEL", "BAAI/bge-reranker-base", {"reranker_model": "BAAI/bge-reranker-base"}),
        ("ORT_EXECUTION_PROVIDER", "cuda", {"device": "cuda-or-cpu"}),
        ("ORT_EXECUTION_PROVIDER", "cpu", {"device": "cpu"}),
        ("API_WORKERS", "4", {"front_ends": 4}),
        ("MAX_RERANKING_BATCH_SIZE", "64", {"max_reranking_batch_size": 64}),
        ("ORT_NUM_THREADS", "4", {"num_threads": 4}),
        ("MAX_EMBEDDING_BATCH_SIZE", "256", {"max_batch_requests": 256}),
        ("RUST_LOG", "debug,embedding_inference_api=trace", {"log_level": "debug"}),
        ("INFERENCE_MODEL_PATH", "/models", {"model_path": "/models"}),
        ("INFERENCE_HOSTNAME", "0.0.0.0", {"host": "0.0.0.0"}),
        ("INFERENCE_PORT", "8090", {"port": 8090}),
        ("INFERENCE_ALLOWED_EMBEDDING_MODELS", "a,b", {"models": ("a", "b")}),
        ("INFERENCE_ALLOWED_RERANK_MODELS", "r,s", {"rerankers": ("r", "s")}),
        ("INFERENCE_MAX_BATCH_SIZE", "128", {"max_client_batch_size": 128}),
        ("INFERENCE_GPU_BATCH_SIZE", "32", {"max_batch_requests": 32}),
        ("INFERENCE_MAX_CONCURRENT_REQUESTS", "2", {"max_concurrent_requests": 2}),
        ("INFERENCE_QUEUE_TIMEOUT_MS", "30000", {"queue_timeout_s": 30.0}),
        ("CORS_ALLOWED_ORIGINS", "*", {"cors_allow_origin": ("*",)}),
        ("SERVER_SSL_ENABLED", "true", {"tls_enabled": True}),
        ("SERVER_SSL_ENABLED", "false", {"tls_enabled": False}),
        ("TLS_SERVER_CERT_PATH", "/chain.pem", {"tls_cert_file": "/chain.pem"}),
        ("TLS_SERVER_KEY_PATH", "/key.pem", {"tls_key_file": "/key.pem"}),
        ("SERVICE_NAME", "search", {"otlp_service_name": "search"}),
        ("OTEL_SERVICE_VERSION", "1.0.0", {"otlp_service_version": "1.0.0"}),
    ],
    "tei": [
        ("MODEL_ID", "./Qwen3-Embedding-0.6B", {"models": ("./Qwen3-Embedding-0.6B",)}),
        ("HOSTNAME", "0.0.0.0", {"host": "0.0.0.0"}),
        ("JSON_OUTPUT", "true", {"log_format": "json"}),
        ("RUST_LOG", "debug,embedding_inference_api=trace", {"log_level": "debug"}),
        ("HF_API_TOKEN", "hush", {"hf_token": "hush"}),
    ],
    "infinity": [
        ("INFINITY_MODEL_ID", "a;b;", {"models": ("a", "b")}),
        ("INFINITY_SERVED_MODEL_NAME", "x;y", {"served_model_name": ("x", "y")}),
        ("INFINITY_REVISION", "main;main", {"revision": "main"}),
        ("INFINITY_HOME", "/data", {"hf_home": "/data"}),
        ("INFINITY_POOLING_METHOD", "auto", {"pooling": None}),
        ("INFINITY_DEVICE", "cuda;cuda", {"device": "cuda"}),
        ("INFINITY_DEVICE_ID", "0,1", {"device": "cuda:0,cuda:1"}),
        ("INFINITY_DEVICE_ID", "0", {"device": "cuda:0"}),
        ("INFINITY_DTYPE", "bfloat16", {"dtype": "bfloat16"}),
        ("INFINITY_BATCH_SIZE", "32;64", {"max_batch_requests": 64}),
        ("INFINITY_MAX_CLIENT_BATCH_SIZE", "2048", {"max_client_batch_size": 2048}),
        ("INFINITY_HOST", "0.0.0.0", {"host": "0.0.0.0"}),
        ("INFINITY_PORT", "7997", {"port": 7997}),
        ("INFINITY_URL_PREFIX", "/v1", {"url_prefix": "/v1"}),
        ("INFINITY_PROXY_ROOT_PATH", "/proxy", {"url_prefix": "/proxy"}),
        ("PROXY_ROOT_PATH", "/proxy", {"url_prefix": "/proxy"}),
        ("INFINITY_API_KEY", "hush", {"api_key": "hush"}),
        ("INFINITY_LOG_LEVEL", "critical", {"log_level": "error"}),
        ("INFINITY_PERMISSIVE_CORS", "true", {"cors_allow_origin": ("*",)}),
        ("INFINITY_PERMISSIVE_CORS", "false", {}),
    ],
    "ollama": [
        ("OLLAMA_HOST", "0.0.0.0", {"host": "0.0.0.0"}),
        ("OLLAMA_HOST", "0.0.0.0:9000", {"host": "0.0.0.0", "port": 9000}),
        ("OLLAMA_HOST", ":9000", {"host": "0.0.0.0", "port": 9000}),
        ("OLLAMA_HOST", "::1", {"host": "::1"}),
        ("OLLAMA_HOST", ' "0.0.0.0:9000" \n', {"host": "0.0.0.0", "port": 9000}),
        ("OLLAMA_NUM_PARALLEL", "'4'", {"max_running_requests": 4}),
        ("OLLAMA_HOST", "[::1]:9000", {"host": "::1", "port": 9000}),
        ("OLLAMA_HOST", "http://127.0.0.1", {"host": "127.0.0.1", "port": 80}),
        ("OLLAMA_KEEP_ALIVE", "1h30m", {"model_idle_s": 5400.0}),
        ("OLLAMA_KEEP_ALIVE", "300", {"model_idle_s": 300.0}),
        ("OLLAMA_KEEP_ALIVE", "-1", {"model_idle_s": 0.0}),
        ("OLLAMA_KEEP_ALIVE", "0", {"model_idle_s": 1.0}),
        ("OLLAMA_MAX_QUEUE", "64", {"max_concurrent_requests": 64}),
        ("OLLAMA_NUM_PARALLEL", "4", {"max_running_requests": 4}),
        ("OLLAMA_NUM_PARALLEL", "0", {}),
        ("OLLAMA_CONTEXT_LENGTH", "16384", {"max_length": 16384}),
    ],
    "llama-cpp": [
        ("LLAMA_API_KEY", "hush", {"api_key": "hush"}),
        ("LLAMA_ARG_MODEL", "/models/a.gguf", {"models": ("/models/a.gguf",)}),
        ("LLAMA_ARG_HF_REPO", "a/b", {"models": ("a/b",)}),
        ("LLAMA_ARG_MODEL_URL", "https://host/a.gguf", {"models": ("https://host/a.gguf",)}),
        ("LLAMA_ARG_ALIAS", "mine", {"served_model_name": ("mine",)}),
        ("LLAMA_ARG_TIMEOUT", "60", {"request_timeout_s": 60.0}),
        ("LLAMA_ARG_POOLING", "last", {"pooling": "last"}),
        ("LLAMA_ARG_POOLING", "rank", {}),
        ("LLAMA_ARG_THREADS", "4", {"num_threads": 4}),
        ("LLAMA_ARG_HOST", "0.0.0.0", {"host": "0.0.0.0"}),
        ("LLAMA_ARG_PORT", "8080", {"port": 8080}),
        ("LLAMA_ARG_API_PREFIX", "/llama", {"url_prefix": "/llama"}),
        ("LLAMA_ARG_SSL_CERT_FILE", "c", {"tls_cert_file": "c"}),
        ("LLAMA_ARG_SSL_KEY_FILE", "k", {"tls_key_file": "k"}),
    ],
    "vllm": [
        ("VLLM_API_KEY", "hush", {"api_key": "hush"}),
    ],
}

# infinity's options are its variables without this prefix; those of the others are the variables themselves.
PREFIXES = {"default": "", "embedding-server": "", "tei": "", "vllm": "", "infinity": "INFINITY_"}

WITHOUT_EFFECT = {
    "embedding-server": "UDS_PATH",
    "tei": "UDS_PATH",
    "smart-embedder": "HF_MODEL_CACHE_VOLUME",
    "semantic-explorer": "CUDA_ARENA_SIZE CUDA_ARENA_EXTEND_STRATEGY GPU_PRESSURE_THRESHOLD INFERENCE_MAX_QUEUE_DEPTH",
    "vllm": "TRUST_REMOTE_CODE",
    "infinity": "INFINITY_REDIRECT_SLASH INFINITY_TRUST_REMOTE_CODE TRUST_REMOTE_CODE INFINITY_MODEL_WARMUP "
    "INFINITY_ENGINE INFINITY_COMPILE INFINITY_BETTERTRANSFORMER INFINITY_VECTOR_DISK_CACHE INFINITY_EMBEDDING_DTYPE "
    "INFINITY_LENGTHS_VIA_TOKENIZE INFINITY_PRELOAD_ONLY INFINITY_ONNX_DISABLE_OPTIMIZE DO_NOT_TRACK "
    "INFINITY_ONNX_DO_NOT_PREFER_QUANTIZED INFINITY_CALIBRATION_DATASET_URL INFINITY_ANONYMOUS_USAGE_STATS "
    "INFINITY_QUEUE_SIZE",
    "ollama": "OLLAMA_MAX_LOADED_MODELS",
    "llama-cpp": "LLAMA_ARG_N_PARALLEL LLAMA_ARG_CTX_SIZE LLAMA_ARG_BATCH LLAMA_ARG_UBATCH LLAMA_ARG_N_GPU_LAYERS "
    "LLAMA_ARG_EMBEDDINGS LLAMA_ARG_RERANKING LLAMA_ARG_HF_FILE",
}


def values(config: Config) -> dict[str, Any]:
    found = {name: value for section in asdict(config).values() for name, value in section.items()}
    return found | found.pop("product")


def words_of(profile: str) -> list[str]:
    """With the setting that one profile requires."""
    return ["--profile", profile, *(["--models", "m"] if profile == "simple-inference-server" else [])]


def option_of(profile: str, variable: str) -> str:
    return "--" + variable.removeprefix(PREFIXES[profile]).lower().replace("_", "-")


@pytest.mark.parametrize("profile", MEANT)
def test_a_variable_has_its_products_meaning(tmp_path: Path, profile: str) -> None:
    """It changes no other setting."""
    without = values(load(words_of(profile), NOTHING, tmp_path).config)
    for name, text, effect in MEANT[profile]:
        base = [] if "models" in effect else words_of(profile)[2:]
        loaded = load(["--profile", profile, "--env-compat", *base], {name: text}, tmp_path)
        assert values(loaded.config) == without | effect, name
        assert loaded.notes == (), name


@pytest.mark.parametrize("profile", sorted(MEANT.keys() & PREFIXES.keys()))
def test_its_option_means_the_same(tmp_path: Path, profile: str) -> None:
    """The command lines of servers that have options work here."""
    without = values(load(["--profile", profile], NOTHING, tmp_path).config)
    for name, text, effect in MEANT[profile]:
        loaded = load(["--profile", profile, f"{option_of(profile, name)}={text}"], NOTHING, tmp_path)
        assert values(loaded.config) == without | effect, name


@pytest.mark.parametrize("profile", [profile for profile in MEANT if profile != "default"])
def test_a_products_name_counts_under_its_profile_only(tmp_path: Path, profile: str) -> None:
    """Elsewhere it is another program's: a variable is logged with the profiles, an option is refused with them."""
    key = {"VECTORD_API_KEY": "hush"}  # without a key of its own, the server refuses that of a product
    without = load((), key, tmp_path).config
    for name, text, effect in MEANT[profile]:
        loaded = load((), {name: text, **key}, tmp_path)
        assert loaded.config == without, name
        if any(value is not None for value in effect.values()):
            (note,) = loaded.notes
            assert f"{name} (" in note, name
            assert profile in note, name
        own = {flag for setting in SETTINGS for flag in setting.flags}
        if profile in PREFIXES and (option := option_of(profile, name)) not in own:
            line = refused([f"{option}={text}"], NOTHING, tmp_path)
            assert "it counts under the profile" in line, name
            assert profile in line, name


def test_a_prefixed_name_of_a_profile_is_refused_elsewhere(tmp_path: Path) -> None:
    """With the profile."""
    line = refused((), {"VECTORD_MAX_RERANK_PASSAGES": "8"}, tmp_path)
    assert line.endswith("it counts under the profile smart-embedder only")


@pytest.mark.parametrize(
    ("name", "profile"), [("API_TOKEN", "smart-embedder"), ("VLLM_API_KEY", "vllm"), ("INFINITY_API_KEY", "infinity")]
)
def test_a_key_of_another_profile_is_refused(tmp_path: Path, name: str, profile: str) -> None:
    """By a server to which clients need no other key: it would be open to everyone. Commands and clients ignore it."""
    for words, environ in (([], {name: "hush", "VECTORD_ADMIN_KEY": "other"}), (["--env-file", ".env"], NOTHING)):
        loaded = load(words, environ, tmp_path)
        with pytest.raises(ConfigError) as refusal:
            loaded.check_keys()
        assert refusal.value.message == (
            f"{name} does not protect this server; it counts under the profile {profile} only; set VECTORD_API_KEY "
            f"(or --api-key) or --profile, or unset {name}"
        )
        (tmp_path / ".env").write_text(f"{name}=hush")
    keyed = load(["--api-keys-file", "keys.toml", "--env-file", ".env"], NOTHING, tmp_path)
    keyed.check_keys()
    assert keyed.notes == (f"set, but read under other profiles only: {name} ({profile})",)
    assert load(["--profile", profile, "--env-file", ".env"], NOTHING, tmp_path).config.server.demands_key


def test_a_machine_name_is_no_note(tmp_path: Path) -> None:
    """A value that would set nothing under the profile either, as every container's HOSTNAME, is not logged."""
    assert load((), {"HOSTNAME": "4f2a9c1e77b0"}, tmp_path).notes == ()


@pytest.mark.parametrize("profile", WITHOUT_EFFECT)
def test_a_variable_without_effect_is_accepted_and_logged(tmp_path: Path, profile: str) -> None:
    """Each is listed by its profile, and a note names it."""
    names = WITHOUT_EFFECT[profile].split()
    assert sorted(make_profile(profile, profiles()).without_effect) == sorted(names)
    without = load(["--profile", profile], NOTHING, tmp_path)
    for name in names:
        loaded = load(["--profile", profile], {name: "float32"}, tmp_path)
        assert loaded.config == without.config, name
        assert loaded.notes == (f"set, but without effect here: {name} (see docs/configuration.md)",), name


@pytest.mark.parametrize("profile", profiles())
def test_a_products_name_has_one_meaning(profile: str) -> None:
    """No option, and no variable without effect, is one of two settings."""
    product = make_profile(profile, profiles())
    flags = [flag for setting in product.settings for flag in setting.flags]
    assert len(flags) == len(set(flags))
    assert not product.without_effect.keys() & {name for one in product.settings for name in (one.bare, *one.env)}
    known = {*product.without_effect, *(name for names in product.names.values() for name in names)}
    assert {*product.switches, *product.repeated, *product.as_written} <= known


@pytest.mark.parametrize(
    ("name", "text"), [("OTEL_RESOURCE_ATTRIBUTES", "host.name=a"), ("OTEL_TRACES_EXPORTER", " OTLP ")]
)
def test_other_values_of_opentelemetry_set_nothing(tmp_path: Path, name: str, text: str) -> None:
    """The SDK reads them."""
    loaded = load((), {name: text}, tmp_path)
    assert (loaded.config, loaded.notes) == (Config(), ())


@pytest.mark.parametrize(("text", "disabled"), [("console", True), ("zipkin,jaeger", True), ("console,otlp", False)])
def test_other_exporters_are_logged(tmp_path: Path, text: str, disabled: bool) -> None:
    """Traces go to a collector only if otlp is among the exporters."""
    loaded = load((), {"OTEL_TRACES_EXPORTER": text}, tmp_path)
    assert loaded.config.telemetry.disable_spans is disabled
    assert loaded.notes == ("OTEL_TRACES_EXPORTER: otlp is the only exporter of this server; others make no traces",)


def test_a_bad_address_of_ollama_is_refused_under_its_profile(tmp_path: Path) -> None:
    """No other server fails because of it."""
    environ = {"OLLAMA_HOST": "http://[::1"}
    assert load((), environ, tmp_path).config == Config()
    assert refused(["--profile", "ollama"], environ, tmp_path).startswith("OLLAMA_HOST (environment): expected")


def test_the_default_of_llama_cpp_sets_no_threads(tmp_path: Path) -> None:
    """It means that the server chooses, as without the variable."""
    assert load((), {"LLAMA_ARG_THREADS": "-1"}, tmp_path).config == Config()


def test_batching_switched_off_leaves_the_size_of_a_window(tmp_path: Path) -> None:
    """Simple Inference Server's .env has both. Off means one forward for each request; a window of 0 means the same
    under its profile, and batching is on by default."""
    sizes = {"MODELS": "bge-m3", "BATCH_WINDOW_MAX_SIZE": "16", "MAX_BATCH_SIZE": "32"}
    argv = ["--profile", "simple-inference-server"]
    for environ, joins in (({}, True), ({"ENABLE_BATCHING": "0"}, False), ({"BATCH_WINDOW_MS": "0"}, False)):
        config = load(argv, {**sizes, **environ}, tmp_path).config
        assert (config.device.max_batch_requests, config.engine.joins_requests) == (16, joins)
    assert load((), {"VECTORD_BATCH_WINDOW_MS": "0"}, tmp_path).config.engine.joins_requests


def test_the_warm_up_of_simple_inference_server_counts(tmp_path: Path) -> None:
    """One batch of one text by default. ENABLE_WARMUP=0 wins over WARMUP_STEPS."""
    argv, models = ["--profile", "simple-inference-server"], {"MODELS": "bge-m3"}
    for environ, batches in (({}, 1), ({"WARMUP_STEPS": "2"}, 2), ({"WARMUP_STEPS": "2", "ENABLE_WARMUP": "0"}, 0)):
        assert load(argv, {**models, **environ}, tmp_path).config.engine.warmup_batches == batches


@pytest.mark.parametrize("text", ["1", "true", "T", "yes", "Y", "on"])
def test_every_form_of_true_is_accepted(tmp_path: Path, text: str) -> None:
    """The forms of all servers, in any case."""
    assert load((), {"VECTORD_AUTO_TRUNCATE": text}, tmp_path).config.engine.auto_truncate is True


def test_both_keys_count(tmp_path: Path) -> None:
    """API_TOKEN is a name of Smart Embedder, and vectord's own one does not disable it."""
    environ = {"API_KEY": "one", "API_TOKEN": "other"}
    loaded = load(["--profile", "smart-embedder"], environ, tmp_path)
    assert loaded.config.server.accepted_keys == {"api_key": "one", "api_token": "other"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("MULTI_GPU_DEVICES", "None"), ("MULTI_GPU_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "0,1")],
)
def test_a_variable_without_a_device_changes_nothing(name: str, text: str, tmp_path: Path) -> None:
    """Smart Embedder's constant is None by default, and torch itself reads the visible GPUs."""
    assert load((), {name: text}, tmp_path).config.device.device == "auto"
