"""Ollama, as far as it is about embeddings and the models that make them.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong. Runs on the event loop,
called by the server's handler. GET / is a page of the server; Ollama's own is under this dialect's prefix.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.ollama import requests, wire
from vectord.products.ollama.errors import render_error

_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

DIALECT = Dialect(
    name="ollama",
    title="Ollama",
    routes=(
        *post(
            "/api/embed",
            parse=requests.parse_embed,
            summary="Embed texts",
            body=wire.EmbedBody,
            answer=wire.Embeddings,
            example={"model": _MODEL, "input": ["Why is the sky blue?", "Why is the grass green?"]},
            keys=["input"],
        ),
        *post(
            "/api/embeddings",
            parse=requests.parse_prompt,
            summary="Embed one text, as before /api/embed",
            body=wire.PromptBody,
            answer=wire.Embedding,
            example={"model": _MODEL, "prompt": "Here is an article about llamas..."},
            keys=["prompt"],
        ),
        *post(
            "/api/show",
            parse=requests.parse_show,
            summary="Show one served model",
            body=wire.ShowBody,
            answer=wire.Shown,
            example={"model": f"{_MODEL}:latest"},
            keys=["model"],
        ),
        *post(
            "/api/show",
            parse=requests.parse_show_name,
            summary="Show one served model",
            body=wire.ShowNameBody,
            answer=wire.Shown,
            example={"name": _MODEL},
            keys=["name"],
        ),
        *get("/api/tags", parse=requests.parse_tags, summary="List served models", answer=wire.Models),
        *get("/api/ps", parse=requests.parse_running, summary="List the models in memory", answer=wire.RunningModels),
        *get(
            "/api/version",
            parse=requests.parse_version,
            summary="Show the server's version",
            answer=wire.Version,
            public=True,
        ),
        *get("/", parse=requests.parse_front, summary="Whether the server is there", public=True),
    ),
    render_error=render_error,
)
