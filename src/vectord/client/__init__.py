"""A client of vectord's own API, for Python programs: `vectord.Client`, and `vectord.AsyncClient` under asyncio.

    calls ── parts of a long list ──▶ in_order ── requests ──▶ sending ──▶ the server
      ▲                                                           │ answers
    joining ◀────────────── in the order of the parts ────────────┘

It imports nothing of the server. It needs the extra `client`: httpx, and scipy for sparse vectors.
"""

from vectord.client.answers import (
    Batch,
    Document,
    Embeddings,
    Health,
    Label,
    Model,
    Ranked,
    Ranking,
    Span,
    Token,
)
from vectord.client.async_client import AsyncClient
from vectord.client.client import Client
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
    "Batch",
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
]
