"""Conversations to text: a client's messages in the model's own chat template.

Belongs to the event loop; operations call it before a text is tokenized. One template runs at a time, in a thread
(chat_template.py): a large conversation takes tenths of a second.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from itertools import count

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InputTooLong, InvalidField, Overloaded
from vectord.schema import Conversation

LIMIT_CHARACTERS = 4 * 2**20  # of a conversation; chat_template.py has the same limit for its text
MAX_WAITING_CHARACTERS = 8 * LIMIT_CHARACTERS  # of all conversations that are rendered or wait for it
CONVERSATION_CHARACTERS = 4096  # the cost of a conversation besides its length


class ChatTemplates:
    """Renders one conversation at a time; clients receive equal shares of characters."""

    def __init__(self) -> None:
        self._turns = FairTurns()
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
        try:
            await self._turns.take(client, cost)
            work = asyncio.ensure_future(asyncio.to_thread(_rendered, template, conversation))
            work.add_done_callback(lambda _: self._turns.give_back())  # the thread goes on if this request is cancelled
            text = await asyncio.shield(work)
        finally:
            self._waiting[client] -= cost
            if not self._waiting[client]:
                del self._waiting[client]
        if isinstance(text, InvalidField):
            raise text
        return text


class FairTurns:
    """One turn at a time, by self-clocked fair queueing: clients receive equal shares of the cost, whatever becomes of
    their work, and a small turn of a new client precedes the large ones that wait."""

    def __init__(self) -> None:
        self._clock = 0  # the tag of the turn that is taken
        self._last: dict[str, int] = {}  # the highest tag of each client
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: (tag, number, set when it begins)
        self._numbers = count()
        self._taken = False

    async def take(self, client: str, cost: int) -> None:
        """Returns when the turn begins; `give_back` ends it."""
        tag = max(self._clock, self._last.get(client, 0)) + cost
        self._last[client] = tag
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (tag, next(self._numbers), turn))
        if not self._taken:
            self._begin_next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it began just before
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken = False
        self._begin_next()

    def _begin_next(self) -> None:
        while self._waiting:
            self._clock, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._taken = True
                turn.set_result(None)
                return
        self._clock = 0
        self._last.clear()


def _rendered(template: ChatTemplate, conversation: Conversation) -> str | InvalidField:
    from vectord.text.chat_template import rendered  # noqa: PLC0415 - jinja2 takes 30 ms; most servers never need it

    return rendered(template, conversation)
