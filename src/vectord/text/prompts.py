"""Which words go before a text: the request's own, or the model's by name or kind. Pure; called by tokenizer.py."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.errors import InputTooLong, InvalidField, Untokenizable
from vectord.schema import InputKind, TextOptions

# A literal prompt is read once for every input, so its length multiplies; the longest instruction published has 900.
LITERAL_LIMIT_CHARACTERS = 2_000

# What models call their prompts for the two kinds, the usual name first: sentence-transformers and most; E5;
# EmbeddingGemma; nomic; jina v3; stella; e5-mistral.
KIND_NAMES: Mapping[InputKind, tuple[str, ...]] = {
    "query": ("query", "Retrieval-query", "search_query", "retrieval.query", "s2p_query", "web_search_query"),
    "document": ("document", "passage", "corpus", "Retrieval-document", "search_document", "retrieval.passage"),
}


def find_prompt(prompts: Mapping[str, str], options: TextOptions, default_name: str | None) -> str:
    """The text to put before an input, "" for none. prompts: the model's own; default_name: its default among them.

    The first that the request gives counts: a literal prompt, a name, a kind. A kind the model has no prompt for means
    none, and not the default: that one may be for the other kind. Raises InvalidField for a name the model does not
    have; InputTooLong or Untokenizable for a literal prompt.
    """
    if options.prompt is not None:
        return check_literal(options.prompt, "prompt")
    if options.prompt_name is not None:
        return _named(prompts, options.prompt_name)
    if options.kind is not None:
        return next((prompts[name] for name in KIND_NAMES[options.kind] if name in prompts), "")
    return prompts[default_name] if default_name is not None else ""


def check_literal(prompt: str, field: str) -> str:
    """A prompt or instruction of the client's own, if it may be used. Raises InputTooLong or Untokenizable."""
    if len(prompt) > LITERAL_LIMIT_CHARACTERS:
        message = f"`{field}` must have at most {LITERAL_LIMIT_CHARACTERS} characters; got {len(prompt)}"
        raise InputTooLong(message, field=field)
    try:
        prompt.encode()
    except UnicodeEncodeError:
        message = f"`{field}` is not Unicode text: it has half of a surrogate pair"
        raise Untokenizable(message, field=field) from None
    return prompt


def refuse_prompts(options: TextOptions) -> None:
    """Raises InvalidField if the request asks for a prompt: no model that reads pairs was trained with any."""
    for field in ("prompt_name", "prompt"):
        if getattr(options, field) is not None:
            raise InvalidField(f"`{field}` does not apply to pairs of texts", field=field)


def _named(prompts: Mapping[str, str], name: str) -> str:
    if name not in prompts:
        known = (
            f"must be one of this model's prompts: {', '.join(prompts)}"
            if prompts
            else "is set, but this model has no prompts"
        )
        raise InvalidField(f"`prompt_name` {known}", field="prompt_name")
    return prompts[name]
