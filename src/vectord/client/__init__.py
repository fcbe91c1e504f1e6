"""The Python client of vectord's own API: `vectord.Client`, and `vectord.AsyncClient` for asyncio.

Imports nothing of the server. Needs the extra `client`: httpx, and scipy for sparse vectors. Read client.py first.

    client ── a call's items ──▶ calls ── requests ──▶ in_order ── a few at a time ──▶ transport ──▶ server
                                   ▲                                                      │
                                   └────────── replies, in the order of the items ────────┘
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
    NotAcceptable,
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
    "NotAcceptable",
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
