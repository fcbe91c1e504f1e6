"""Conversations of a body: messages of texts and images, which the model's chat template makes one input of."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Protocol, TypeAlias, cast

import msgspec

from vectord.errors import InvalidField, MissingField
from vectord.products.common.body import Content, TokenId, decode
from vectord.products.common.fields import about
from vectord.products.common.inputs import Image
from vectord.products.common.media import read_image
from vectord.schema import Conversation, Media

# The key of the text in each kind of part.
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
IMAGES = ("image_url", "input_image")


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    image_url: Image = None

    def read(self, field: str, index: int | None = None) -> str | Media:
        """The text or the image. Raises InvalidField for a part of another type."""
        if self.type in IMAGES:
            return read_image(self.image_url, field, index)
        if self.type not in TEXTS:
            template = "{field}: only parts of text and images can be read; sound and video are not supported."
            raise InvalidField(template, field=field, index=index)
        return getattr(self, TEXTS[self.type]) or ""


class Message(msgspec.Struct, omit_defaults=True):
    """`content`: a text, or parts of text and images; parts of other kinds are refused."""

    role: str
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    task: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


Messages = Annotated[
    list[Message],
    msgspec.Meta(max_length=1024, description="formatted by the chat template; not next to a text"),
]
Conversations = Annotated[
    list[Message | list[Message]],
    msgspec.Meta(
        max_length=1024,
        description="formatted by the chat template; not next to `input`. Lists of messages are several inputs",
    ),
]
TextsIdsOrMessages: TypeAlias = str | list[str | TokenId | Message | list[TokenId | Message]]
GenerationPrompt = Annotated[bool, about("of `messages`: end with the beginning of an assistant's message")]
Continue = Annotated[bool, about("of `messages`: leave the last one open, without its end")]
RequestTemplate = Annotated[Any, about("refused: only the server's templates are run")]
TemplateVariables = Annotated[dict[str, Any], about("of `messages`: further variables of the chat template")]


class ChatOptions(Protocol):
    """A body with fields for conversations."""

    add_generation_prompt: GenerationPrompt | None
    continue_final_message: Continue
    chat_template: RequestTemplate
    chat_template_kwargs: TemplateVariables | None


class _InputBody(msgspec.Struct):
    """A body whose `input` is one conversation, and which has no fields for it."""

    input: list[Message]
    add_generation_prompt: GenerationPrompt | None = None
    continue_final_message: Continue = False
    chat_template: RequestTemplate = None
    chat_template_kwargs: TemplateVariables | None = None


_input_body = msgspec.json.Decoder(_InputBody)


def read_input_conversation(content: Content) -> Conversation:
    """The messages in `input` of a body in JSON. Raises as `read_conversation`, and `fault_of`."""
    body = decode(_input_body, content)
    return read_conversation(body, body.input)


def conversations_of(given: str | Sequence[Any], field: str) -> Sequence[Sequence[Message]]:
    """The conversations in the value of a field: messages are one, lists of messages one each; none if it has texts or
    ids. Raises InvalidField for messages among other items."""
    if isinstance(given, str):
        return ()
    items = [one for item in given for one in (item if isinstance(item, list) else [item])]
    if not any(isinstance(one, Message) for one in items):
        return ()
    nested = {isinstance(item, list) for item in given}
    if len(nested) > 1 or not all(isinstance(one, Message) for one in items) or [] in given:
        raise InvalidField("{field} must be messages, or lists of messages, and nothing else.", field=field)
    return cast("Sequence[Sequence[Message]]", given if nested == {True} else [given])


def read_conversation(body: ChatOptions, messages: Sequence[Message], *, prompts: bool = False) -> Conversation:
    """A conversation of the body. prompts: the default of `add_generation_prompt`.

    Raises InvalidField: options that exclude each other, another template, or a part that is neither text nor image.
    """
    kwargs = body.chat_template_kwargs or {}
    if body.chat_template is not None or kwargs.get("chat_template") is not None:
        # vLLM's words, for a server without --trust-request-chat-template.
        raise InvalidField(
            "Refused request with untrusted chat template: {field} is the server's.", field="chat_template"
        )
    if {"chat_template", "tokenize", "messages", "add_generation_prompt"} & kwargs.keys():
        raise InvalidField("{field} has a name that the server sets itself.", field="chat_template_kwargs")
    generates = prompts and not body.continue_final_message
    if body.add_generation_prompt is not None:
        generates = body.add_generation_prompt
    if generates and body.continue_final_message:
        template = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        raise InvalidField(template, field="continue_final_message")
    media: list[Media] = []
    return Conversation(
        messages=json.dumps([_shown(message, index, media) for index, message in enumerate(messages)]),
        media=tuple(media),
        variables=json.dumps(kwargs),
        add_generation_prompt=generates,
        continue_final_message=body.continue_final_message,
    )


def refuse_chat_fields(body: ChatOptions, messages: object) -> None:
    """Raises InvalidField for a field of conversations in a body with a text. messages: its own field of them."""
    given = {
        "conversations": messages,
        "chat_template": body.chat_template,
        "chat_template_kwargs": body.chat_template_kwargs,
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
    }
    for field, value in given.items():
        if value:
            raise InvalidField("{field} is for conversations; leave it out next to {body.inputs}.", field=field)


def _shown(message: Message, index: int, media: list[Media]) -> dict[str, Any]:
    """The message as chat templates read it, with its content as a list. Its images are added to `media`."""
    given = [message.content] if isinstance(message.content, str) else message.content or []
    content: list[Any] = []
    for part in given:
        read = part if isinstance(part, str) else part.read("conversations", index)
        if isinstance(read, Media):
            media.append(read)
        content.append({"type": "image"} if isinstance(read, Media) else read)
    shown: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "task"):
        if (value := getattr(message, name)) is not None:
            shown[name] = value
    if message.role == "assistant":
        if message.reasoning is not None:
            shown |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
        if message.tool_calls is not None:
            shown["tool_calls"] = list(_with_arguments(message.tool_calls, index))
    if message.role == "tool" and message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _with_arguments(calls: list[dict[str, Any]], index: int) -> Iterator[dict[str, Any]]:
    """Tool calls with their arguments as an object: clients send JSON in a string, and templates read an object."""
    for call in calls:
        function = call.get("function")
        if not isinstance(function, dict):
            raise MissingField("{field} has a tool call without `function`.", field="conversations", index=index)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                template = "{field} has a tool call whose arguments are not JSON."
                raise InvalidField(template, field="conversations", index=index) from None
        yield {**call, "function": {**function, "arguments": arguments or {}}}
