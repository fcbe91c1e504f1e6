"""Stored files and batches: lines that are hostile to the parser, and downloads that are not read."""

from __future__ import annotations

import asyncio
import json

from tests.attack.target import ANSWERS_OF_A_LOADED_SERVER, Attempt, Target

ENDPOINT = "/v1/embeddings"
ENDED = ("completed", "failed")
LINE = '{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":%s}\n'
KEYS = 1_400_000
# Contents of files, of up to 30 MB.
CONTENTS = {
    "many keys": LINE % ("{" + "".join(f'"k{number}":{{}},' for number in range(KEYS)) + '"input":"a"}'),
    "many ids": LINE % ('{"input":[' + "1," * 10_000_000 + "1]}"),
    "escape sequences": LINE % ('{"x":"' + "\\u00e9" * 4_000_000 + '","input":"a"}'),
    "deep lists": LINE % ('{"input":' + "[" * 1_000_000 + "]" * 1_000_000 + "}"),
    "empty lines": "\n" * 20_000_000,
    "broken lines": "{broken\n" * 50_000,
    "one id": (LINE % '{"input":"a"}') * 50_000,
}
DOWNLOAD_BYTES = 16_000_000  # more than the kernel's buffers hold


async def hostile_lines(target: Target, attempt: Attempt) -> None:
    """Batches of one undivided line of 20 MB, of empty, broken and repeated lines."""
    files = [await _upload(target, attempt, content.encode()) for content in CONTENTS.values()]
    if not all(files):
        return

    async def one(number: int) -> None:
        file = files[attempt.tried % len(files)]
        body = json.dumps({"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h"}).encode()
        reply = await target.ask(target.post("/v1/batches", body))
        if reply.status != 200:
            attempt.saw(reply.status)
            if reply.status != 400 and reply.status not in ANSWERS_OF_A_LOADED_SERVER:  # 400: too many batches
                attempt.fault(f"a batch was answered with {reply.status}")
            return
        show = target.get(f"/v1/batches/{json.loads(reply.body)['id']}", target.authorization())
        while (status := json.loads((await target.ask(show)).body).get("status")) not in ENDED:
            await asyncio.sleep(0.1)
        attempt.saw(status)

    await attempt.crowd(one, min(attempt.connections, 4))
    for file in files:
        await _delete(target, file)


async def unread_downloads(target: Target, attempt: Attempt) -> None:
    """Downloads of one file by clients that read nothing."""
    file = await _upload(target, attempt, bytes(DOWNLOAD_BYTES))
    if file is None:
        return
    request = target.get(f"/v1/files/{file}/content", target.authorization())

    async def one(number: int) -> None:
        async with target.connection() as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request)
            await asyncio.sleep(attempt.left_s())
            attempt.saw("unread")

    await attempt.crowd(one, 4 * attempt.connections)
    await _delete(target, file)


async def _upload(target: Target, attempt: Attempt, content: bytes) -> str | None:
    """The id of the new file. None if the server stores none; the attack is skipped then."""
    parts = ((b'name="purpose"', b"batch"), (b'name="file"; filename="a"', content))
    form = b"".join(b"--b\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % part for part in parts) + b"--b--\r\n"
    reply = await target.ask(target.post("/v1/files", form, content_type="multipart/form-data; boundary=b"))
    if reply.status == 200:
        id: str = json.loads(reply.body)["id"]
        return id
    attempt.skipped = f"an upload was answered with {reply.status}; start the server with --batch-dir"
    return None


async def _delete(target: Target, file: str | None) -> None:
    await target.ask(target.get(f"/v1/files/{file}", target.authorization()).replace(b"GET", b"DELETE", 1))


ATTACKS = (hostile_lines, unread_downloads)
