"""Conversations to text: a client's messages in the model's own chat template.

All templates run in one process (chat_process.py), which starts with the first conversation. Belongs to the event loop;
operations call it before a text is tokenized.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path

from vectord.checkpoints.spec import ChatTemplate
from vectord.errors import InputTooLong, InvalidField, Overloaded, Unavailable
from vectord.schema import Conversation

RENDER_LIMIT_S = 2.0
START_LIMIT_S = 30.0
DECODED_ON_LOOP_BYTES = 2**16  # a text of the maximum size takes up to 30 ms
LIMIT_CHARACTERS = 4 * 2**20  # of a conversation; chat_process.py has the same limit for its text
SMALL_CHARACTERS = 2**16  # of a conversation that waits for one larger one at most
MAX_WAITING_CHARACTERS = 8 * LIMIT_CHARACTERS  # of all larger conversations that are rendered or wait for it
_SCRIPT = Path(__file__).with_name("chat_process.py")


class ChatTemplates:
    """Renders one conversation at a time."""

    def __init__(self, render_limit_s: float = RENDER_LIMIT_S) -> None:
        self._render_limit_s = render_limit_s
        self._process: Process | None = None
        self._free = asyncio.Lock()
        self._large = asyncio.Lock()  # at most one large conversation waits for `_free`
        self._waiting_characters = 0

    async def render(self, template: ChatTemplate | None, conversation: Conversation) -> str:
        """The text of the conversation.

        Raises InvalidField without a template, or if it does not render these messages in time; Overloaded if too many
        conversations wait; Unavailable if the process cannot start.
        """
        if template is None:
            raise InvalidField(
                "{field} cannot be read: this model has no chat template. Send the text itself, or start the server "
                "with --chat-template.",
                field="conversation",
            )
        size = len(conversation.messages) + len(conversation.variables)
        if size > LIMIT_CHARACTERS:
            raise InputTooLong(
                "{field} may have at most {most} characters; got {size}.",
                field="conversation",
                most=f"{LIMIT_CHARACTERS:,}",
                size=f"{size:,}",
            )
        if size <= SMALL_CHARACTERS:
            answer = await self._answer(template, conversation)
        else:
            answer = await self._answer_large(template, conversation, size)
        if "reason" in answer:
            raise _failed(answer["reason"])
        return answer["text"]

    async def _answer_large(self, template: ChatTemplate, conversation: Conversation, size: int) -> Mapping[str, str]:
        if self._waiting_characters + size > MAX_WAITING_CHARACTERS:
            raise Overloaded("Too many conversations wait for their chat template; try again.", retry_after_s=1.0)
        self._waiting_characters += size
        try:
            async with self._large:
                return await self._answer(template, conversation)
        finally:
            self._waiting_characters -= size

    async def _answer(self, template: ChatTemplate, conversation: Conversation) -> Mapping[str, str]:
        """What chat_process.py answers."""
        async with self._free:
            try:
                process = await self._running()
                job = _job(template, conversation)
                return await asyncio.wait_for(_ask(process, job), self._render_limit_s)
            except TimeoutError:
                await self.close()
                raise _failed(f"it takes more than {self._render_limit_s:g} s") from None
            except (OSError, EOFError):
                await self.close()
                raise _failed("it ends its process") from None
            except BaseException:  # of a cancelled request too: its answer would go to the next one
                await self.close()
                raise

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(_SCRIPT)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env={},
                start_new_session=True,  # Ctrl-C is for the server, which ends this process
            )
            await asyncio.wait_for(_read_frame(self._process), START_LIMIT_S)
        except (OSError, EOFError, TimeoutError) as problem:
            await self.close()
            raise Unavailable("The process that renders chat templates does not start.") from problem
        return self._process

    async def close(self) -> None:
        """Ends the process; the next conversation starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.communicate()  # closes the pipes


def _job(template: ChatTemplate, conversation: Conversation) -> bytes:
    """One JSON object. The messages are JSON already, and decoding megabytes would stop the event loop."""
    rest = {
        "template": template.text,
        "tokens": dict(template.tokens),
        "add_generation_prompt": conversation.add_generation_prompt,
        "continue_final_message": conversation.continue_final_message,
    }
    head = json.dumps(rest).removesuffix("}")
    return f'{head}, "messages": {conversation.messages}, "variables": {conversation.variables}}}'.encode()


async def _ask(process: Process, job: bytes) -> dict[str, str]:
    assert process.stdin is not None
    process.stdin.write(len(job).to_bytes(4) + job)
    await process.stdin.drain()
    frame = await _read_frame(process)
    answer: dict[str, str] = (
        json.loads(frame) if len(frame) <= DECODED_ON_LOOP_BYTES else await asyncio.to_thread(json.loads, frame)
    )
    return answer


async def _read_frame(process: Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readexactly(int.from_bytes(await process.stdout.readexactly(4)))


def _failed(reason: str) -> InvalidField:
    template = "The model's chat template does not render {field}: {reason}."
    return InvalidField(template, field="conversation", reason=reason)
