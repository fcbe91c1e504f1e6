"""The Python client of vectord's own API: `vectord.Client`, and `vectord.AsyncClient` for asyncio.

Also a distribution of its own, `vectord_client` (pyproject.toml in this folder), so all imports of its own modules are
relative. Sparse vectors need scipy. Read client.py first.

    client ── requests, a few at a time ──▶ transport ──▶ server
       ▲                                        │
       └────── reading ── replies, in order ────┘
"""

from .answers import (
    Document,
    Embeddings,
    Health,
    InputPage,
    Label,
    Model,
    Ranked,
    Ranking,
    Span,
    Token,
    VectorBatch,
)
from .client import AsyncClient, Client
from .errors import (
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
    "InputPage",
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
