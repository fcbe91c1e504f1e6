"""`vectord list`: `vectord models` under the name that Ollama's users know."""

from vectord.cli.commands.models import command

__all__ = ["command"]
