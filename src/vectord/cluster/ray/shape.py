"""How many replicas there are, and how large. Made by serve.py of its options, once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    min_replicas: int = 1
    max_replicas: int = 1  # the same: no scaling
    cpus: int = 1  # of a replica, and its threads
    gpus: float = 0.0
    waiting_tokens: int = 50_000  # that may wait in a replica before there is one more: about 2 s of two cores
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
