"""The Python client of vectord's own API: `vectord.Client`, and `vectord.AsyncClient` for asyncio.

Imports nothing of the server. Needs the extra `client`: httpx, and scipy for sparse vectors. Read calls.py first.

    client ── a list of items ──▶ calls ── requests, a few at a time ──▶ transport ──▶ server
                                    ▲                                        │
                                    └─ reading ── replies, in order ─────────┘
"""

from vectord.client.answers import (
    Document,
    Embeddings,
    Health,
    Label,
    Model,
    Ranked,
    Ranking,
    Span,
    Token,
    VectorBatch,
)
from vectord.client.client import AsyncClient, Client
from vectord.client.errors import (
    BadRequest,
    ClientError,
    ConnectionFailed,
    FingerprintChanged,
    NotFound,
    Overloaded,
    ServerFailed,
    Timeout,
    TryLater,
    Unauthorized,
    Unavailable,
)

__all__ = [
    "AsyncClient",
    "BadRequest",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Document",
    "Embeddings",
    "FingerprintChanged",
    "Health",
    "Label",
    "Model",
    "NotFound",
    "Overloaded",
    "Ranked",
    "Ranking",
    "ServerFailed",
    "Span",
    "Timeout",
    "Token",
    "TryLater",
    "Unauthorized",
    "Unavailable",
    "VectorBatch",
]
