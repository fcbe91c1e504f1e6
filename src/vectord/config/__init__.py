"""Every setting once (declared.py), its names and forms (settings.py), and where its value came from (sources.py)."""

from vectord.config.declared import (
    DEFAULT_MODEL,
    Config,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ServerConfig,
    TelemetryConfig,
)

__all__ = [
    "DEFAULT_MODEL",
    "Config",
    "DeviceConfig",
    "EngineConfig",
    "ModelConfig",
    "ServerConfig",
    "TelemetryConfig",
]
