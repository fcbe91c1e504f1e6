"""What huggingface_hub reads from its environment alone, written there: `.env`, files and options say it too."""

from __future__ import annotations

from collections.abc import MutableMapping

from vectord.config.declared import ModelConfig


def tell_hub(config: ModelConfig, environ: MutableMapping[str, str]) -> None:
    """Before huggingface_hub is imported, which reads them once, and before artifacts/hub.py looks for the cache."""
    if config.hf_home is not None:
        environ["HF_HOME"] = config.hf_home
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):  # the settings have weighed them already
            environ.pop(name, None)
    if config.hub_cache is not None:
        environ["HF_HUB_CACHE"] = config.hub_cache
    if config.hf_endpoint is not None:
        environ["HF_ENDPOINT"] = config.hf_endpoint
