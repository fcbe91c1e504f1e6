"""vectord: a self-hosted server for retrieval models."""

__version__ = "0.1.0"
