"""Conversations to text: a client's messages in the model's own chat template.

Belongs to the event loop; operations call it before a text is tokenized. One template runs at a time, in a thread
(chat_template.py): a large conversation takes tenths of a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InputTooLong, InvalidField, Overloaded
from vectord.schema import Conversation

LIMIT_CHARACTERS = 4 * 2**20  # of a conversation; chat_template.py has the same limit for its text
MAX_WAITING_CHARACTERS = 8 * LIMIT_CHARACTERS  # of all conversations that are rendered or wait for it
CONVERSATION_CHARACTERS = 4096  # the cost of a conversation besides its length


class ChatTemplates:
    """Renders one conversation at a time; clients take turns."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._own_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by client: one waits for _turn
        self._waiting: Counter[str] = Counter()  # characters, by client

    async def render(self, template: ChatTemplate | None, conversation: Conversation, client: str) -> str:
        """The text of the conversation. Raises Overloaded if too many conversations of this client wait."""
        if template is None:
            raise InvalidField(
                "{field} cannot be read: this model has no chat template. Send the text itself, or start the server "
                "with --chat-template.",
                field="conversations",
            )
        size = len(conversation.messages) + len(conversation.variables)
        if size > LIMIT_CHARACTERS:
            raise InputTooLong(
                "{field} may have at most {most} characters; got {size}.",
                field="conversations",
                most=f"{LIMIT_CHARACTERS:,}",
                size=f"{size:,}",
            )
        cost = size + CONVERSATION_CHARACTERS
        own = self._waiting[client]
        left = MAX_WAITING_CHARACTERS - (self._waiting.total() - own)
        if own + cost > left // 2:  # the other half is for other clients
            raise Overloaded("Too many conversations wait for their chat template; try again.", retry_after_s=1.0)
        self._waiting[client] += cost
        # The thread goes on if this request is cancelled, so its turn does too.
        text = await asyncio.shield(asyncio.create_task(self._render(template, conversation, client, cost)))
        if isinstance(text, InvalidField):
            raise text
        return text

    async def _render(
        self, template: ChatTemplate, conversation: Conversation, client: str, cost: int
    ) -> str | InvalidField:
        try:
            async with self._own_turns[client], self._turn:
                return await asyncio.to_thread(_rendered, template, conversation)
        finally:
            self._waiting[client] -= cost
            if not self._waiting[client]:
                del self._waiting[client], self._own_turns[client]


def _rendered(template: ChatTemplate, conversation: Conversation) -> str | InvalidField:
    from vectord.text.chat_template import rendered  # noqa: PLC0415 - jinja2 takes 30 ms; most servers never need it

    return rendered(template, conversation)
