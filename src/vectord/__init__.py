"""vectord: a self-hosted server for retrieval models, a client for it, and its engine for Python programs."""

TYPE_CHECKING = False  # as type checkers understand it, without importing typing
if TYPE_CHECKING:
    from vectord.client import AsyncClient, Client
    from vectord.errors import InputTooLong, InvalidRequest, ModelNotFound, ModelUnavailable, VectordError
    from vectord.library.embedder import Embedder

__version__ = "0.1.0"
# Of the commands' processes: new containers between collections, which stop all threads; most are freed by their
# reference counts. Python's values are (700, 10, 10).
GC_THRESHOLDS = (10_000, 20, 100)
__all__ = [
    "AsyncClient",
    "Client",
    "Embedder",
    "InputTooLong",
    "InvalidRequest",
    "ModelNotFound",
    "ModelUnavailable",
    "VectordError",
    "__version__",
]


def __getattr__(name: str) -> object:
    """What the package exports, imported on first use: the command must start at once."""
    if name not in __all__:
        raise AttributeError(f"module 'vectord' has no attribute {name!r}")
    if name == "Embedder":
        from vectord.library.embedder import Embedder  # noqa: PLC0415

        return Embedder
    if name in ("AsyncClient", "Client"):
        from vectord import client  # noqa: PLC0415

        return getattr(client, name)
    from vectord import errors  # noqa: PLC0415

    return getattr(errors, name)


def __dir__() -> list[str]:
    return [*__all__]
