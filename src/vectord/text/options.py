"""The options of a request that reads texts, checked against the model: prompt, token limit, special tokens. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vectord.errors import InputTooLong, InvalidField, Untokenizable
from vectord.schema import InputKind, Side, TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.truncation import Limit

# A client's own prompt is read once for each input; the longest instruction that a model publishes has 900.
PROMPT_LIMIT_CHARACTERS = 2_000

# What models call their prompts for the two kinds, the usual name first: sentence-transformers and most; E5;
# EmbeddingGemma; nomic; jina v3; stella; e5-mistral.
KIND_NAMES: Mapping[InputKind, tuple[str, ...]] = {
    "query": ("query", "Retrieval-query", "search_query", "retrieval.query", "s2p_query", "web_search_query"),
    "document": ("document", "passage", "corpus", "Retrieval-document", "search_document", "retrieval.passage"),
}


def find_prompt(prompts: Mapping[str, str], options: TextOptions, default_name: str | None) -> str:
    """The text to put before each input; "" for none. prompts: the model's own; default_name: its default prompt.

    The request's prompt text comes first, then its `prompt_name`, then its `kind`. A kind for which the model has no
    prompt means none: the default prompt may be for the other kind. Raises InvalidField for an unknown name, and
    InputTooLong or Untokenizable for a prompt text.
    """
    if options.prompt is not None:
        return check_prompt(options.prompt, "prompt")
    if options.prompt_name is not None:
        if options.prompt_name in prompts:
            return prompts[options.prompt_name]
        if not prompts:
            raise InvalidField("{field} is set, but this model has no prompts", field="prompt_name")
        raise InvalidField(
            "{field} must be one of this model's prompts: {prompts}", field="prompt_name", prompts=", ".join(prompts)
        )
    if options.kind is not None:
        return next((prompts[name] for name in KIND_NAMES[options.kind] if name in prompts), "")
    return prompts[default_name] if default_name is not None else ""


def check_prompt(prompt: str, field: str) -> str:
    """A prompt or instruction of the client's own, if it is valid. Raises InputTooLong or Untokenizable."""
    if len(prompt) > PROMPT_LIMIT_CHARACTERS:
        raise InputTooLong(
            "{field} must have at most {most} characters; got {size}",
            field=field,
            most=PROMPT_LIMIT_CHARACTERS,
            size=len(prompt),
        )
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise Untokenizable("{field} is not Unicode text: it has half of a surrogate pair", field=field) from None
    return prompt


def refuse_prompts(options: TextOptions) -> None:
    """Raises InvalidField if the request sets a prompt: models that read pairs are trained without any."""
    for field in ("prompt_name", "prompt"):
        if getattr(options, field) is not None:
            raise InvalidField("{field} does not apply to pairs of texts", field=field)


def limit_of(request: ReadRequest, most: int, least: int, side: Side | None = None) -> Limit:
    """The limit of an input: `most` tokens, which the model reads, or the request's lower number.

    least: the specials and one token of each text; side: replaces the request's `truncate_side`. Raises InvalidField
    for fewer tokens.
    """
    options = request.options
    max_tokens = most if options.max_tokens is None else min(options.max_tokens, most)
    if options.max_tokens is not None and options.max_tokens < least:
        raise InvalidField(
            "{field} must be at least {limit} here, special tokens included; got {given}",
            field="max_tokens",
            limit=least,
            given=options.max_tokens,
        )
    return Limit(max_tokens, request.truncate, side or options.truncate_side, most)


def require_specials(options: TextOptions, purpose: str) -> None:
    """Raises InvalidField if the request leaves out special tokens that the model needs for `purpose`."""
    if not options.add_special_tokens:
        raise InvalidField("{field} cannot be off for {purpose}", field="add_special_tokens", purpose=purpose)
