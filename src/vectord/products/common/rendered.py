"""What goes back over HTTP, as dialects make it and the server sends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One HTTP answer. `headers` are the dialect's own; the server adds request id, length contract and such."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
