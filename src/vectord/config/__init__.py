"""Every setting, and where its value comes from. Imports nothing of vectord but errors.py.

Read declared.py first: it declares each setting once. settings.py derives names and reads values, profiles.py adds
a product's names, command_line.py makes options of the settings, sources.py merges all sources.
"""

from vectord.config.declared import (
    DEFAULT_MODEL,
    Config,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ServerConfig,
    TelemetryConfig,
)

__all__ = ["DEFAULT_MODEL", "Config", "DeviceConfig", "EngineConfig", "ModelConfig", "ServerConfig", "TelemetryConfig"]
