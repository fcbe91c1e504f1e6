"""The options of a request that reads texts, checked against the model: prompt, adapter, token limit, special tokens.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from vectord.checkpoints.spec import Adapter
from vectord.errors import InvalidField, Untokenizable
from vectord.schema import InputKind, Side, TextOptions
from vectord.text.sequence import ReadRequest
from vectord.text.truncation import Limit, check_size

# A client's own prompt is read once for each input; the longest instruction that a model publishes has 900.
PROMPT_LIMIT_CHARACTERS = 2_000

# What models call their prompts and adapters for each kind, the usual name first: sentence-transformers and most; E5;
# EmbeddingGemma; nomic; jina v3; stella; e5-mistral.
KIND_NAMES: Mapping[InputKind, tuple[str, ...]] = {
    "query": ("query", "Retrieval-query", "search_query", "retrieval.query", "s2p_query", "web_search_query"),
    "document": ("document", "passage", "corpus", "Retrieval-document", "search_document", "retrieval.passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering", "separation"),
}


def find_prompt(prompts: Mapping[str, str], options: TextOptions, default_name: str | None) -> str:
    """The text to put before each input; "" for none. prompts: the model's own; default_name: its default prompt.

    The request's prompt text comes first, then its `prompt_name`, then a prompt named as its `task`, then its `kind`.
    A kind for which the model has no prompt means none: the default prompt may be for another kind.
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
    if options.task is not None and options.task in prompts:
        return prompts[options.task]
    if options.kind is not None:
        return next((prompts[name] for name in KIND_NAMES[options.kind] if name in prompts), "")
    return prompts[default_name] if default_name is not None else ""


def find_adapter(adapters: Sequence[Adapter], options: TextOptions, default_name: str | None = None) -> int:
    """The adapter for the inputs, from 1 in their order; 0: none.

    The request's `task` comes first, which may end with the use of the texts (retrieval.query), then an adapter named
    as its `prompt_name`, then one for its `kind`, then the default.
    """
    if not adapters:
        return 0
    names = [adapter.name for adapter in adapters]
    if options.task is not None:
        task = options.task if options.task in names else options.task.rpartition(".")[0]
        if task not in names:
            template = "{field} must be one of this model's: {tasks}"
            raise InvalidField(template, field="task", tasks=", ".join(names))
        return names.index(task) + 1
    requested = (options.prompt_name, *(KIND_NAMES[options.kind] if options.kind is not None else ()))
    chosen = next((name for name in requested if name in names), default_name)
    return 0 if chosen is None else names.index(chosen) + 1


def check_prompt(prompt: str, field: str) -> str:
    """A prompt or instruction of the client's own, if it is valid."""
    check_size(len(prompt), PROMPT_LIMIT_CHARACTERS, field=field)
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

    least: the specials and one token of each text; side: the only end that this model's inputs are cut at; None: any.
    """
    options = request.options
    if side is not None and options.truncate_side != side:
        raise InvalidField("{field}: such inputs of this model are only cut at their end", field="truncate_side")
    return text_limit(options.max_tokens, request.truncate, options.truncate_side, most, least)


@lru_cache(maxsize=256)
def text_limit(
    asked: int | None, truncate: bool, side: Side, most: int, least: int, characters: int | None = None
) -> Limit:
    """`limit_of` inputs that are cut at any end. asked: by the request; None: as many as the model reads. characters:
    see Limit.model_characters."""
    if asked is not None and asked < least:
        raise InvalidField(
            "{field} must be at least {limit} here, special tokens included; got {given}",
            field="max_tokens",
            limit=least,
            given=asked,
        )
    return Limit(most if asked is None else min(asked, most), truncate, side, most, characters)


def require_specials(options: TextOptions, purpose: str) -> None:
    """Raises InvalidField if the request leaves out special tokens that the model needs for `purpose`."""
    if not options.add_special_tokens:
        raise InvalidField("{field} cannot be off for {purpose}", field="add_special_tokens", purpose=purpose)
