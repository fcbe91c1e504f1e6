"""Every variable of the servers that vectord replaces, and its effect here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.config.start import NOTHING, load, refused

from vectord.config import Config
from vectord.config import other_servers as readers
from vectord.config.other_servers import IGNORED_NAMES, ValueReader
from vectord.config.settings import option_name
from vectord.config.sources import read_profile
from vectord.products.common.profiles import profiles

# From the documentation of the four servers, then TEI, infinity and llama.cpp, then from sources.
MEANT = [
    # embedding_server's flags
    ("MODEL_ID", "./Qwen3-Embedding-0.6B", {"models": ("./Qwen3-Embedding-0.6B",)}),
    ("REVISION", "main", {"revision": "main"}),
    ("TOKENIZATION_WORKERS", "2", {"tokenization_workers": 2}),
    ("DTYPE", "float16", {"dtype": "float16"}),
    ("POOLING", "last-token", {"pooling": "last"}),
    ("MAX_CONCURRENT_REQUESTS", "4", {"max_concurrent_requests": 4}),
    ("MAX_BATCH_TOKENS", "1384", {"max_batch_tokens": 1384}),
    ("MAX_BATCH_REQUESTS", "5", {"max_batch_requests": 5}),
    ("MAX_CLIENT_BATCH_SIZE", "2", {"max_client_batch_size": 2}),
    ("HOSTNAME", "0.0.0.0", {"host": "0.0.0.0"}),
    ("PORT", "8080", {"port": 8080}),
    ("API_KEY", "hush", {"api_key": "hush"}),
    ("JSON_OUTPUT", "true", {"log_format": "json"}),
    # smart_embedder's variables
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
    ("CUDA_VISIBLE_DEVICES", "-1", {"device": "cpu"}),
    # simple_inference_server's
    ("MODELS", "bge-m3,embedding-gemma-300m", {"models": ("bge-m3", "embedding-gemma-300m")}),
    ("MODEL_NAMES", "bge-m3", {"models": ("bge-m3",)}),
    ("MODEL_CONFIG", "configs/model_config.yaml", {"model_catalogue": "configs/model_config.yaml"}),
    ("MODEL_DEVICE", "cuda:1", {"device": "cuda:1"}),
    ("HF_HOME", "./models", {"hf_home": "./models"}),
    ("HF_TOKEN", "hush", {"hf_token": "hush"}),
    ("HF_HUB_OFFLINE", "1", {"offline": True}),
    ("MAX_CONCURRENT", "1", {"max_running_requests": 1}),
    ("MAX_BATCH_SIZE", "32", {"max_client_batch_size": 32}),
    ("MAX_TEXT_CHARS", "20000", {"max_text_chars": 20_000}),
    ("ENABLE_BATCHING", "0", {"join_requests": "never"}),
    ("ENABLE_WARMUP", "0", {"warmup_batches": 0}),
    ("WARMUP_STEPS", "2", {"warmup_batches": 2}),
    ("WARMUP_BATCH_SIZE", "8", {"warmup_batch_size": 8}),
    ("BATCH_WINDOW_MS", "6", {"batch_window_ms": 6.0}),
    ("BATCH_WINDOW_MAX_SIZE", "16", {"max_batch_requests": 16}),
    ("BATCH_MAX_SIZE", "16", {"max_batch_requests": 16}),
    ("QUEUE_TIMEOUT_SEC", "2.0", {"queue_timeout_s": 2.0}),
    ("EMBEDDING_CACHE_SIZE", "0", {"cache_texts": 0}),
    ("EMBEDDING_CACHE_SIZE", "256", {"cache_texts": 256}),
    ("ENABLE_METRICS", "0", {"enable_metrics": False}),
    ("LOG_LEVEL", "WARNING", {"log_level": "warning"}),
    ("MULTI_GPU_DEVICES", "['cuda:0', 'cuda:1']", {"device": "cuda:0,cuda:1"}),
    ("MULTI_GPU_DEVICES", "cuda:0, cuda:1", {"device": "cuda:0,cuda:1"}),
    # semantic_explorer's
    ("API_HOST", "0.0.0.0", {"host": "0.0.0.0"}),
    ("API_PORT", "8090", {"port": 8090}),
    ("SHUTDOWN_TIMEOUT_SECS", "30", {"shutdown_timeout_secs": 30.0}),
    ("DEFAULT_EMBEDDING_MODEL", "BAAI/bge-small-en-v1.5", {"default_embedding_model": "BAAI/bge-small-en-v1.5"}),
    ("DEFAULT_RERANKING_MODEL", "BAAI/bge-reranker-base", {"reranker_model": "BAAI/bge-reranker-base"}),
    ("HUGGING_FACE_HUB_TOKEN", "hush", {"hf_token": "hush"}),
    ("ORT_EXECUTION_PROVIDER", "cuda", {"device": "cuda-or-cpu"}),
    ("ORT_EXECUTION_PROVIDER", "cpu", {"device": "cpu"}),
    ("API_WORKERS", "4", {"front_ends": 4}),
    ("MAX_RERANKING_BATCH_SIZE", "64", {"max_reranking_batch_size": 64}),
    ("ORT_NUM_THREADS", "4", {"num_threads": 4}),
    ("MAX_EMBEDDING_BATCH_SIZE", "256", {"max_batch_requests": 256}),
    ("RUST_LOG", "debug,embedding_inference_api=trace", {"log_level": "debug"}),
    ("LOG_FORMAT", "json", {"log_format": "json"}),
    # TEI's
    ("HUGGINGFACE_HUB_CACHE", "/data", {"hub_cache": "/data"}),
    ("HF_HUB_CACHE", "/data", {"hub_cache": "/data"}),
    ("HF_API_TOKEN", "hush", {"hf_token": "hush"}),
    ("SERVED_MODEL_NAME", "mine", {"served_model_name": ("mine",)}),
    ("POOLING", "splade", {"pooling": "splade"}),
    ("DENSE_PATH", "2_Dense_1024", {"dense_path": "2_Dense_1024"}),
    ("DEFAULT_PROMPT", "query: ", {"default_prompt": "query: "}),
    ("DEFAULT_PROMPT_NAME", "query", {"default_prompt_name": "query"}),
    ("AUTO_TRUNCATE", "true", {"auto_truncate": True}),
    ("PAYLOAD_LIMIT", "2000000", {"payload_limit": 2_000_000}),
    # vLLM's
    ("VLLM_API_KEY", "hush", {"api_key": "hush"}),
    # llama.cpp's
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
    # infinity's
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
    ("URL_PREFIX", "/api/models", {"url_prefix": "/api/models"}),
    ("INFINITY_API_KEY", "hush", {"api_key": "hush"}),
    ("INFINITY_LOG_LEVEL", "critical", {"log_level": "error"}),
    # llama.cpp's, and names that only the sources have
    ("LLAMA_API_KEY", "hush", {"api_key": "hush"}),
    ("TRANSFORMERS_OFFLINE", "1", {"offline": True}),
    ("HF_ENDPOINT", "https://mirror.test", {"hf_endpoint": "https://mirror.test"}),
    ("BATCH_MAX_ITEMS", "32", {"max_batch_requests": 32}),
    ("MODEL_PATH", "/models", {"model_path": "/models"}),
    ("INFERENCE_MODEL_PATH", "/models", {"model_path": "/models"}),
    ("INFERENCE_HOSTNAME", "0.0.0.0", {"host": "0.0.0.0"}),
    ("INFERENCE_PORT", "8090", {"port": 8090}),
    ("INFERENCE_ALLOWED_EMBEDDING_MODELS", "a,b", {"models": ("a", "b")}),
    ("INFERENCE_ALLOWED_RERANK_MODELS", "r,s", {"rerankers": ("r", "s")}),
    ("INFERENCE_MAX_BATCH_SIZE", "128", {"max_client_batch_size": 128}),
    ("INFERENCE_GPU_BATCH_SIZE", "32", {"max_batch_requests": 32}),
    ("INFERENCE_MAX_CONCURRENT_REQUESTS", "2", {"max_concurrent_requests": 2}),
    ("INFERENCE_QUEUE_TIMEOUT_MS", "30000", {"queue_timeout_s": 30.0}),
    ("NUM_THREADS", "2", {"num_threads": 2}),
    ("REQUEST_TIMEOUT", "90", {"request_timeout_s": 90.0}),
    ("RERANK_GPU_TIMEOUT", "60", {"rerank_timeout_s": 60.0}),
    ("GPU_PROCESS_TIMEOUT", "15", {"forward_timeout_s": 15.0}),
    ("QWEN_RERANK_BATCH_SIZE", "16", {"qwen_rerank_batch_size": 16}),
    ("MAX_SENTENCE_CHARS", "20000", {"max_sentence_chars": 20000}),
    ("MAX_TOTAL_CHARS_PER_REQUEST", "250000", {"max_total_chars_per_request": 250_000}),
    ("MAX_RERANK_TEXT_CHARS", "20000", {"max_rerank_text_chars": 20000}),
    ("MAX_RERANK_TOTAL_CHARS", "250000", {"max_rerank_total_chars": 250_000}),
    ("RERANK_MAX_QUEUE", "32", {"max_concurrent_reranks": 32}),
    ("RATE_LIMIT_REQUESTS_PER_MINUTE", "600", {"rate_limit_requests_per_minute": 600}),
    ("RATE_LIMIT_BURST_SIZE", "20", {"rate_limit_burst_size": 20}),
    ("CORS_ALLOW_ORIGIN", "https://a.test,https://b.test", {"cors_allow_origin": ("https://a.test", "https://b.test")}),
    ("CORS_ALLOWED_ORIGINS", "*", {"cors_allow_origin": ("*",)}),
    ("INFINITY_PERMISSIVE_CORS", "true", {"cors_allow_origin": ("*",)}),
    ("INFINITY_PERMISSIVE_CORS", "false", {}),
    ("SERVER_SSL_ENABLED", "true", {"tls_enabled": True}),
    ("SERVER_SSL_ENABLED", "false", {"tls_enabled": False}),
    ("TLS_SERVER_CERT_PATH", "/chain.pem", {"tls_cert_file": "/chain.pem"}),
    ("TLS_SERVER_KEY_PATH", "/key.pem", {"tls_key_file": "/key.pem"}),
    ("REDIS_URL", "redis://host:6379/0", {"redis_url": "redis://host:6379/0"}),
    ("TRUSTED_PROXIES", "10.0.0.0/8", {"trusted_proxies": ("10.0.0.0/8",)}),
    ("API_KEYS_FILE", "keys.toml", {"api_keys_file": "keys.toml"}),
    ("OTLP_ENDPOINT", "http://collector:4317", {"otlp_endpoint": "http://collector:4317"}),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317", {"otlp_endpoint": "http://localhost:4317"}),
    ("OTLP_SERVICE_NAME", "s3-embedding.server", {"otlp_service_name": "s3-embedding.server"}),
    ("OTEL_SERVICE_NAME", "embedding-inference-api", {"otlp_service_name": "embedding-inference-api"}),
    ("SERVICE_NAME", "search", {"otlp_service_name": "search"}),
    ("OTEL_RESOURCE_ATTRIBUTES", "host.name=a,service.name=my%20search", {"otlp_service_name": "my search"}),
    ("OTEL_TRACES_EXPORTER", "none", {"disable_spans": True}),
    ("OTEL_SDK_DISABLED", "true", {"disable_spans": True}),
    ("OTEL_SERVICE_VERSION", "1.0.0", {"otlp_service_version": "1.0.0"}),
    ("DISABLE_SPANS", "true", {"disable_spans": True}),
    ("GRPC_PORT", "50051", {"grpc_port": 50051}),
    ("PROMETHEUS_PORT", "9000", {"prometheus_port": 9000}),
]

WITHOUT_EFFECT = """
    UDS_PATH INFINITY_REDIRECT_SLASH HF_MODEL_CACHE_VOLUME TRUST_REMOTE_CODE INFINITY_TRUST_REMOTE_CODE
    INFINITY_MODEL_WARMUP INFINITY_ENGINE INFINITY_COMPILE
    INFINITY_BETTERTRANSFORMER
    INFINITY_VECTOR_DISK_CACHE INFINITY_EMBEDDING_DTYPE INFINITY_LENGTHS_VIA_TOKENIZE INFINITY_PRELOAD_ONLY
    INFINITY_ONNX_DISABLE_OPTIMIZE INFINITY_ONNX_DO_NOT_PREFER_QUANTIZED INFINITY_CALIBRATION_DATASET_URL
    INFINITY_ANONYMOUS_USAGE_STATS DO_NOT_TRACK CUDA_ARENA_SIZE CUDA_ARENA_EXTEND_STRATEGY
    GPU_PRESSURE_THRESHOLD
    INFINITY_QUEUE_SIZE INFERENCE_MAX_QUEUE_DEPTH
    OLLAMA_HOST OLLAMA_ORIGINS OLLAMA_KEEP_ALIVE OLLAMA_MAX_LOADED_MODELS OLLAMA_MAX_QUEUE OLLAMA_NUM_PARALLEL
    OLLAMA_CONTEXT_LENGTH
    LLAMA_ARG_N_PARALLEL LLAMA_ARG_CTX_SIZE LLAMA_ARG_BATCH LLAMA_ARG_UBATCH LLAMA_ARG_N_GPU_LAYERS
    LLAMA_ARG_EMBEDDINGS LLAMA_ARG_RERANKING LLAMA_ARG_HF_FILE
"""


def values(config: Config) -> dict[str, Any]:
    found = {name: value for section in asdict(config).values() for name, value in section.items()}
    return found | found.pop("product")


def words_for(name: str) -> list[str]:
    """The command line with which the variable counts: that of the profile that offers it, or nothing."""
    for profile in profiles():
        if any(name in setting.env for setting in read_profile(profile, Path(), profiles()).settings):
            return ["--profile", profile, "--models", "m"]
    return []


def test_a_variable_has_its_meaning_elsewhere(tmp_path: Path) -> None:
    """It changes no other setting."""
    for name, text, effect in MEANT:
        words = words_for(name)
        without, loaded = load(words, NOTHING, tmp_path), load(words, {name: text}, tmp_path)
        assert values(loaded.config) == values(without.config) | effect, name
        assert loaded.notes == without.notes, name


def test_a_variable_of_one_profile_counts_under_it_only(tmp_path: Path) -> None:
    """Elsewhere it is another program's. An option, or a name with vectord's prefix, is refused with the profile."""
    for name, text, _ in MEANT:
        if words := words_for(name):
            assert load((), {name: text}, tmp_path).config == Config(), name
            reason = f"it counts under the profile {words[1]} only"
            assert refused([f"{option_name(name)}={text}"], NOTHING, tmp_path).endswith(reason)
    assert refused((), {"VECTORD_MAX_RERANK_PASSAGES": "8"}, tmp_path).endswith("profile smart-embedder only")


def test_its_option_means_the_same(tmp_path: Path) -> None:
    """The servers' command lines work here."""
    for name, text, effect in MEANT:
        words = words_for(name)
        without, loaded = (load([*words, *more], NOTHING, tmp_path) for more in ((), [f"{option_name(name)}={text}"]))
        assert values(loaded.config) == values(without.config) | effect, name


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


def test_the_default_of_llama_cpp_sets_no_threads(tmp_path: Path) -> None:
    """It means that the server chooses, as without the variable."""
    assert load((), {"LLAMA_ARG_THREADS": "-1"}, tmp_path).config == Config()


def test_a_variable_without_effect_is_accepted_and_logged(tmp_path: Path) -> None:
    """The configuration stays at its defaults, and a note names the variable."""
    for name in WITHOUT_EFFECT.split():
        loaded = load((), {name: next(iter(IGNORED_NAMES[name].harmless), "1")}, tmp_path)
        assert loaded.config == Config(), name
        assert len(loaded.notes) == 1, name
        assert f": {name} (" in loaded.notes[0], name


def test_a_named_device_beats_the_cuda_provider(tmp_path: Path) -> None:
    """MODEL_DEVICE configures the server, a provider only a library."""
    environ = {"ORT_EXECUTION_PROVIDER": "cuda", "MODEL_DEVICE": "cpu"}
    assert load((), environ, tmp_path).config.device.device == "cpu"


def test_batching_switched_off_leaves_the_size_of_a_window(tmp_path: Path) -> None:
    """Simple Inference Server's .env has both. Off means one forward for each request; a window of 0 means the same
    under its profile, and batching is on by default."""
    sizes = {"MODELS": "bge-m3", "BATCH_WINDOW_MAX_SIZE": "16", "MAX_BATCH_SIZE": "32"}
    argv = ["--profile", "simple-inference-server"]
    for environ, joins in (({}, True), ({"ENABLE_BATCHING": "0"}, False), ({"BATCH_WINDOW_MS": "0"}, False)):
        config = load(argv, {**sizes, **environ}, tmp_path).config
        assert (config.device.max_batch_requests, config.engine.joins_requests) == (16, joins)
    assert load((), {"BATCH_WINDOW_MS": "0"}, tmp_path).config.engine.joins_requests


def test_the_warm_up_of_simple_inference_server_counts(tmp_path: Path) -> None:
    """One batch of one text by default. ENABLE_WARMUP=0 wins over WARMUP_STEPS."""
    argv, models = ["--profile", "simple-inference-server"], {"MODELS": "bge-m3"}
    for environ, batches in (({}, 1), ({"WARMUP_STEPS": "2"}, 2), ({"WARMUP_STEPS": "2", "ENABLE_WARMUP": "0"}, 0)):
        assert load(argv, {**models, **environ}, tmp_path).config.engine.warmup_batches == batches


@pytest.mark.parametrize("text", ["1", "true", "T", "yes", "Y", "on"])
def test_every_form_of_true_is_accepted(tmp_path: Path, text: str) -> None:
    """The forms of all servers, in any case."""
    assert load((), {"AUTO_TRUNCATE": text}, tmp_path).config.engine.auto_truncate is True


def test_both_keys_count(tmp_path: Path) -> None:
    """API_KEY and API_TOKEN are names of two servers, and clients of each have a key."""
    environ = {"API_KEY": "one", "API_TOKEN": "other"}
    assert load((), environ, tmp_path).config.server.accepted_keys == {"api_key": "one", "api_token": "other"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("MULTI_GPU_DEVICES", "None"), ("MULTI_GPU_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "0,1")],
)
def test_a_variable_without_a_device_changes_nothing(name: str, text: str, tmp_path: Path) -> None:
    """Smart Embedder's constant is None by default, and torch itself reads the visible GPUs."""
    assert load((), {name: text}, tmp_path).config.device.device == "auto"


# --- readers --------------------------------------------------------------------------------------------------

READ: dict[str, tuple[ValueReader, str, str | None]] = {
    "an address": (readers.address_only, "0.0.0.0", "0.0.0.0"),
    "an IPv6 address": (readers.address_only, "::1", "::1"),
    "localhost": (readers.address_only, "localhost", "localhost"),
    "a machine's name": (readers.address_only, "laptop", None),
    "a container's name": (readers.address_only, "4f2a9c1e77b0", None),
    "a pod's name": (readers.address_only, "vectord-7d9f-x2x", None),
    "a domain": (readers.address_only, "localhost.localdomain", None),
    "a service link of Kubernetes": (readers.no_service_link, "tcp://10.0.0.7:8000", None),
    "a port": (readers.no_service_link, "8000", "8000"),
    "a level before a target": (readers.first_bare_level, "info,tower=debug", "info"),
    "a level after a target": (readers.first_bare_level, "tower=debug, warn", "warn"),
    "a level": (readers.first_bare_level, "debug", "debug"),
    "no bare level": (readers.first_bare_level, "a=info", None),
    "an empty level": (readers.first_bare_level, "", None),
    "JSON": (readers.json_lines, "true", "json"),
    "JSON as a number": (readers.json_lines, "1", "json"),
    "no JSON": (readers.json_lines, "False", "text"),
    "no JSON as a number": (readers.json_lines, "0", "text"),
    "any model": (readers.named_models, "*", None),
    "two models": (readers.named_models, "a,b", "a,b"),
    "one value": (readers.same_for_all, "cuda", "cuda"),
    "one value twice": (readers.same_for_all, "cuda; cuda;", "cuda"),
    "two values": (readers.same_for_all, "cuda;cpu", "cuda;cpu"),
    "two numbers": (readers.largest, "32;64;", "64"),
    "numbers by value": (readers.largest, "9;10", "10"),
    "no numbers": (readers.largest, "32;x", "32;x"),
    "no GPU": (readers.cpu_if_none_visible, "-1", "cpu"),
    "one GPU": (readers.cpu_if_none_visible, "0", None),
    "a provider": (readers.cuda_if_there, "CUDA", "cuda-or-cpu"),
    "another provider": (readers.cuda_if_there, "cpu", "cpu"),
    "batching off": (readers.never_if_off, "0", "never"),
    "batching on": (readers.never_if_off, "1", None),
    "warm-up off": (readers.none_if_off, "0", "0"),
    "warm-up on": (readers.none_if_off, "1", None),
    "milliseconds": (readers.milliseconds, "1500", "1.5"),
    "no milliseconds": (readers.milliseconds, "1.5", "1.5"),
}


@pytest.mark.parametrize("case", READ)
def test_a_value_is_translated_or_passed_on(case: str) -> None:
    """The setting refuses a value that a reader passes on. None is ignored."""
    reader, text, read = READ[case]
    assert reader(text) == read
