"""Readers of the inputs and options that several products share. Each raises errors with canonical field names."""

import re
from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast, overload

import msgspec
from msgspec.structs import replace

from vectord.errors import EmptyInput, InvalidField, TooManyInputs
from vectord.products.common.body import Count, TokenId
from vectord.products.common.fields import about, marked, no_effect, refused
from vectord.products.common.media import is_image, read_image
from vectord.schema import ChunkOptions, EmbedRequest, Input, InputKind, Item, Media, Side, Span, TextOptions, item_of

T = TypeVar("T")

# --- inputs ---------------------------------------------------------------------------------------------------


Medium = Annotated[Any, about("refused: no such files are read")]
Image = Annotated[Any, about("an image: a data URI or base64")]
IMAGE_TYPES = (None, "image", "image_url", "input_image", "image_base64")


class TextItem(msgspec.Struct):
    """A text in an object. Images and other files are refused; other keys are ignored.

    Typed parts, `{"type": "text", "text": ...}`, are one input in llama.cpp's API and an input each in others, so
    several of them are refused where both meanings are possible.
    """

    text: str | None = None
    type: str | None = None
    image: Medium = None
    url: Medium = None
    bytes: Medium = None
    image_url: Medium = None
    image_base64: Medium = None
    audio: Medium = None
    video: Medium = None
    pdf: Medium = None

    def read(self, field: str, index: int | None = None) -> str:
        """The text. Raises InvalidField if there is none, or another medium."""
        media = (*self._images, self.audio, self.video, self.pdf)
        others = self.type not in (None, "text", "input_text") or any(medium is not None for medium in media)
        if self.text is None or others:
            template = "{field} must be a text, or an object with a `text` alone: this model embeds texts only."
            raise InvalidField(template, field=field, index=index)
        return self.text

    @property
    def _images(self) -> tuple[Any, ...]:
        return (self.image, self.url, self.bytes, self.image_url, self.image_base64)


class InputItem(TextItem):
    """A text or an image to embed, in an object. Other files are refused; other keys are ignored."""

    image: Image = None
    url: Image = None
    bytes: Image = None
    image_url: Image = None
    image_base64: Image = None
    role: str | None = None

    @property
    def is_message(self) -> bool:
        """Whether it is a message of a conversation: see chat.py."""
        return self.role is not None and self.text is None and self._images == (None,) * len(self._images)

    def read_item(self, field: str, index: int | None = None) -> Item:
        """The text or the image, or the image before the text. Raises InvalidField as `read` and `read_image`."""
        images = [value for value in self._images if value is not None]
        others = any(medium is not None for medium in (self.audio, self.video, self.pdf))
        if not images or others or self.type not in IMAGE_TYPES:
            return self.read(field, index)
        parts: list[str | Media] = [read_image(image, field, index) for image in images]
        return item_of(parts if self.text is None else [*parts, self.text])


def read_parts(content: Sequence[InputItem], index: int) -> Input:
    """The parts of one input, joined."""
    if not content:
        raise EmptyInput("{field} cannot be empty", field="inputs", index=index)
    parts: list[str | Media] = []
    for item in content:
        read = item.read_item("inputs", index)
        parts += [read] if isinstance(read, str | Media) else read
    return item_of(parts)


TextsOrIds: TypeAlias = str | list[str | TokenId | list[TokenId]]
TextsIdsOrItems: TypeAlias = str | list[str | TokenId | list[TokenId] | InputItem]


@overload
def read_inputs(value: Sequence[int | list[int]], field: str = ...) -> Sequence[Sequence[int]]: ...


@overload
def read_inputs(value: str | Sequence[str | int | list[int] | InputItem], field: str = ...) -> Sequence[Input]: ...


def read_inputs(value: str | Sequence[str | int | list[int] | InputItem], field: str = "inputs") -> Sequence[Input]:
    """The inputs of OpenAI's and TEI's grammar: a text, a list of token ids, or a list of texts and lists of ids.

    A string is one input, and so is a flat list of integers. Raises EmptyInput for an empty list, also inside the list,
    and InvalidField for an integer among other items, or for several typed parts. Empty strings pass: products differ
    on those.
    """
    if isinstance(value, str):
        return (value,)
    refuse_none(value, field)
    if set(map(type, value)) == {str}:
        return cast("Sequence[str]", value)
    if len(value) > 1 and any(isinstance(item, InputItem) and item.type is not None for item in value):
        template = "{field}: parts with a `type` are one input in some APIs and several in others; give strings."
        raise InvalidField(template, field=field)
    is_ids = isinstance(value[0], int)
    inputs = []
    for index, item in enumerate(value):
        if isinstance(item, int) != is_ids:
            template = "{field}: a list of integers is one input and holds nothing else; give ids a list of their own."
            raise InvalidField(template, field=field, index=index)
        if item == []:
            raise EmptyInput("{body.%s} cannot be empty" % field, field=field, index=index)  # noqa: UP031
        inputs.append(item.read_item(field, index) if isinstance(item, InputItem) else item)
    return (value,) if is_ids else inputs  # type: ignore[return-value]


def with_images(inputs: Sequence[Input]) -> Sequence[Input]:
    """The inputs, with images in place of strings that are one as a data URI. Raises as `read_image`."""
    return [
        read_image(one, index=index) if isinstance(one, str) and one[:5].lower() == "data:" and is_image(one) else one
        for index, one in enumerate(inputs)
    ]


def read_filled_inputs(value: str | Sequence[str | int | list[int]]) -> Sequence[Input]:
    """As read_inputs. Raises EmptyInput also for an empty string, as TEI does."""
    inputs = read_inputs(value)
    refuse_empty(inputs, "inputs")
    return inputs


def refuse_none(given: Sized, field: str) -> None:
    """Raises EmptyInput for no inputs at all, or an empty text."""
    if not given:
        raise EmptyInput("{field} cannot be empty", field=field)


def refuse_empty(inputs: Sequence[Input], field: str) -> None:
    if "" in inputs:
        raise EmptyInput(f"{{body.{field}}} cannot be empty", field=field, index=inputs.index(""))


def check_count(given: int, limit: int | None, field: str = "inputs", unit: str = "input") -> None:
    """Raises TooManyInputs, before a product processes inputs that the engine would reject for their number."""
    if limit is not None and given > limit:
        template = "{field} may hold at most {limit} {unit}s; got {given}."
        raise TooManyInputs(template, field=field, limit=limit, given=given, unit=unit)


def join_chunks(chunks: Sequence[str]) -> tuple[str, list[Span]]:
    """The document that a client cut into non-empty chunks, and the span of each, for late chunking.

    A space is inserted between two chunks that have none there, so that no token belongs to both.
    """
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    for chunk in chunks:
        if parts and not parts[-1][-1].isspace() and not chunk[0].isspace():
            parts.append(" ")
            length += 1
        parts.append(chunk)
        spans.append(Span(length, length + len(chunk)))
        length += len(chunk)
    return "".join(parts), spans


def read_chunks(
    max_tokens: int, overlap_tokens: int | None, by: Literal["tokens", "sentences"] | None = None
) -> ChunkOptions:
    """Raises InvalidField for an overlap of a whole chunk or more."""
    overlap = overlap_tokens or 0
    if overlap >= max_tokens:
        template = "{field} must be below {body.chunk.max_tokens}, {max_tokens}; got {given}."
        field = "chunk.overlap_tokens"
        raise InvalidField(template, field=field, limit=max_tokens - 1, given=overlap, max_tokens=max_tokens)
    return ChunkOptions(max_tokens=max_tokens, by=by or "tokens", overlap_tokens=overlap)


# --- options --------------------------------------------------------------------------------------------------


def agreed(**given: T | None) -> T | None:
    """The value of fields that mean the same, None if none is set. Raises InvalidField if two of them differ."""
    (first, value), *others = [*given.items()]
    for name, other in others:
        if value is None:
            first, value = name, other
        elif other not in (None, value):
            template = "{field} contradicts {body.%s}; leave one of them out." % first  # noqa: UP031
            raise InvalidField(template, field=name)
    return value


_KINDS: Mapping[str, InputKind] = {
    **dict.fromkeys(("query", "search_query"), "query"),
    **dict.fromkeys(("document", "passage", "search_document"), "document"),
    "classification": "classification",
    **dict.fromkeys(("clustering", "separation"), "clustering"),
}


def kind_of_task(task: str | None) -> InputKind | None:
    """The use of the texts under Jina's `task`, such as "nl2code.query"; None for other tasks."""
    return None if task is None else _KINDS.get(task.rpartition(".")[2])


def read_kind(word: str | None, field: str = "input_type") -> InputKind | None:
    """The use of the texts in the words of Jina, Cohere, Voyage and others. Raises InvalidField for other words."""
    if not word:
        return None
    kind = kind_of_task(word)
    if kind is None:
        known = ", ".join(_KINDS)
        raise InvalidField("{field} must be one of {known}.", field=field, known=known)
    return kind


_SWITCH = "switch"  # the mark of a switch in the type of a field

if TYPE_CHECKING:
    Switch: TypeAlias = bool | None
else:  # some clients, such as RAGFlow, send "true": `Routes.post` replaces it
    Switch = Annotated[bool | str | None, msgspec.Meta(extra={_SWITCH: True})]


def switches_of(body: type[msgspec.Struct]) -> tuple[str, ...]:
    """The attributes of a body that are switches."""
    return tuple(field.name for field in marked(body, _SWITCH))


def read_switch(word: str, field: str) -> bool:
    """Raises InvalidField for any word but "true" and "false", in any case."""
    if word.lower() not in ("true", "false"):
        raise InvalidField("{field} must be true or false.", field=field)
    return word.lower() == "true"


Truncate = Annotated[
    bool | str | None, about('true or false, or as in NVIDIA NIM "NONE", "START" or "END", the truncated side')
]

_TRUNCATIONS: Mapping[str, tuple[bool, Side | None]] = {
    "none": (False, None),
    "start": (True, "left"),
    "end": (True, "right"),
}


def read_truncate(value: bool | str | None) -> tuple[bool | None, Side | None]:
    """Whether to truncate texts, and the end to cut off; None if unset. Raises InvalidField for an unknown word."""
    if not isinstance(value, str):
        return value, None
    return _TRUNCATIONS.get(value.lower()) or (read_switch(value, "truncate"), None)


Use = Annotated[str | None, about('"query" or "passage": selects the prompt, or the network, of such texts')]


def with_nvidia_keys(
    text: TextOptions, truncate: bool | str | None, input_type: str | None, truncation_side: Side | None = None
) -> TextOptions:
    """`text` with the keys that NVIDIA's clients add to OpenAI's body. truncation_side: the product's own key.

    Raises InvalidField for an unknown word, and for a `truncate` that contradicts the product's own keys.
    """
    cut, side = read_truncate(truncate)
    if cut is not None and text.truncate not in (None, cut):
        raise InvalidField("{field} contradicts another field; leave one of them out.", field="truncate")
    return replace(
        text,
        truncate=text.truncate if cut is None else cut,
        truncate_side=agreed(truncation_side=truncation_side, truncate=side) or text.truncate_side,
        kind=read_kind(input_type),
    )


Prompt = Annotated[str | None, about("put before every text, in place of the model's own prompt")]
Normalize = Annotated[Any, refused("its name here is `normalized`", True)]
ProbabilitiesOnly = Annotated[
    Any, refused("scores are from 0 to 1 here; for logits set `use_activation` to false", True)
]
User = Annotated[Any, no_effect("names the end user")]

OnSwitch = Annotated[Switch, about("null: yes")]
Force = Annotated[Switch, about("an addition: also shorten vectors of models that were not trained for it")]
Width = Annotated[Count | None, about("leading numbers to keep; 0 and null: all")]
TopN = Annotated[Count | None, about("results to show; 0 and null: all")]


class EmbedFields(msgspec.Struct, kw_only=True):
    """Fields of OpenAI's body that several products have here, with our additions."""

    encoding_format: Annotated[str | None, about('"float" (also for null) or "base64"')] = None
    user: User = None
    dimensions: Width = None
    force_dimensions: Force = None
    truncate: Truncate = None
    input_type: Use = None

    def request(self, inputs: Sequence[Input], model: str | None, text: TextOptions) -> EmbedRequest:
        """A request with these fields. Raises InvalidField as `with_nvidia_keys`."""
        return EmbedRequest(
            inputs=inputs,
            model=model or None,
            text=with_nvidia_keys(text, self.truncate, self.input_type),
            dimensions=self.dimensions or None,
            force_dimensions=self.force_dimensions is True,
        )


Direction = Annotated[str, about('"Right" or "Left": the side that is truncated')]

_SIDES: Mapping[str | None, Side] = {None: "right", "right": "right", "left": "left"}


def read_side(direction: str | None) -> Side:
    """The end that is cut off, by TEI's "Right" or "Left" in any case; null is "Right"."""
    side = _SIDES.get(None if direction is None else direction.lower())
    if side is None:
        raise InvalidField("{field} must be 'Right' or 'Left'", field="truncation_direction")
    return side


FINGERPRINT_PATTERN = r"[0-9a-f]{1,32}(:\d{1,7})?(:raw)?"

_fingerprint = re.compile(FINGERPRINT_PATTERN)


def read_fingerprint(value: str | None, field: str = "expect_fingerprint") -> str | None:
    """The fingerprint of a vector space, unchanged. Raises InvalidField for a string of another form."""
    if value is not None and not _fingerprint.fullmatch(value):
        template = "{field} must be a fingerprint from a response: 16 hexadecimal digits, then :WIDTH and :raw if any."
        raise InvalidField(template, field=field)
    return value
