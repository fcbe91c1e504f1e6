"""OpenAI's Batch API with the official SDK, over a real socket."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.products.results import incoming
from tests.real_server import running

from vectord.errors import InvalidField, MalformedBody, MissingField, UnsupportedMediaType, WrongType
from vectord.products.common.dialect import Incoming
from vectord.products.openai.batches import ROUTES

ENDPOINT = "/v1/embeddings"
KEYS = "".join(
    f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n' for name in ("ann", "bob")
)


def line(custom_id: str, body: object = None, **fields: object) -> dict[str, object]:
    body = {"input": f"text {custom_id}"} if body is None else body
    return {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body, **fields}


def jsonl(lines: Sequence[object]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def create(client: openai.OpenAI, content: bytes, endpoint: Any = ENDPOINT) -> openai.types.Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(client: openai.OpenAI, id: str) -> openai.types.Batch:
    deadline_s = time.monotonic() + 60
    while (batch := client.batches.retrieve(id)).status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.02)
    return batch


def results(client: openai.OpenAI, file_id: str | None) -> list[Any]:
    return [] if file_id is None else [json.loads(one) for one in client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "keys.toml").write_text(KEYS)
    (folder / "keys.toml").chmod(0o600)
    options = ("--backend", "fake", "--batch-dir", str(folder / "d"), "--api-keys-file", str(folder / "keys.toml"))
    with running(folder / "log", *options, "--payload-limit", "200000") as (url, _):
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def ann(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="ann", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def bob(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="bob", max_retries=0) as client:
        yield client


def test_a_batch_gives_the_vectors_of_single_requests(ann):
    """Each line has the response of its endpoint, in order; a line that the endpoint refuses is in the error file."""
    lines = [line("a"), line("b", {"input": ["x", "y"], "encoding_format": "base64"}), line("c", {"text": "no input"})]
    batch = ended(ann, create(ann, b"\xef\xbb\xbf" + jsonl(lines)).id)  # a byte order mark, as editors of Windows write
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
    first, second = results(ann, batch.output_file_id)
    assert [first["custom_id"], second["custom_id"]] == ["a", "b"]
    direct = ann.embeddings.create(model="", input="text a", encoding_format="float")
    assert first["response"]["body"]["data"][0]["embedding"] == pytest.approx(direct.data[0].embedding)
    assert first["response"]["status_code"] == 200
    assert len(second["response"]["body"]["data"]) == 2
    (refused,) = results(ann, batch.error_file_id)
    assert refused["custom_id"] == "c"
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["param"] == "input"


def test_a_batch_reranks(ann):
    """/v1/rerank is an endpoint, too, of the product that the body selects."""
    body = {"query": "q", "documents": ["a", "b"]}
    batch = ended(ann, create(ann, jsonl([line("r", body, url="/v1/rerank")]), "/v1/rerank").id)
    (result,) = results(ann, batch.output_file_id)
    assert len(result["response"]["body"]["results"]) == 2


def test_the_example_of_the_page_runs(url, capsys):
    """docs/bulk.md, with the test's address and key."""
    page = (Path(__file__).parents[2] / "docs" / "bulk.md").read_text("utf-8")
    code = page.split("## OpenAI's Batch API")[1].split("```python\n")[1].split("```")[0]
    exec(
        code.replace("http://localhost:8000/v1", url).replace('"none"', '"bob"').replace("sleep(1)", "sleep(0.02)"), {}
    )
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["text-0", "text-1"]


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        pytest.param(b"", "empty_file", None, id="empty"),
        pytest.param(jsonl([line("a")]) + b"{broken\n", "invalid_json_line", 2, id="not-json"),
        pytest.param(jsonl([line("a"), line("a")]), "duplicate_custom_id", 2, id="duplicate"),
        pytest.param(
            jsonl([{"method": "POST", "url": ENDPOINT, "body": {}}]), "missing_required_parameter", 1, id="no-id"
        ),
        pytest.param(jsonl([line("")]), "invalid_request", 1, id="empty-id"),
        pytest.param(jsonl([line("a" * 513)]), "invalid_request", 1, id="long-id"),
        pytest.param(jsonl([line("a", method="GET")]), "invalid_request", 1, id="method"),
        pytest.param(jsonl([line("a", url="/v1/rerank")]), "invalid_request", 1, id="other-endpoint"),
        pytest.param(jsonl([line("a", [1])]), "invalid_request", 1, id="body-no-object"),
    ],
)
def test_a_malformed_line_fails_the_batch(ann, content, code, number):
    """Nothing is answered, and `errors` names the line."""
    batch = ended(ann, create(ann, content).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(fault.code, fault.line) for fault in batch.errors.data] == [(code, number)]
    assert batch.output_file_id is None


def test_keys_see_their_own_files_and_batches_only(ann, bob):
    """Another key's id is answered as an unknown one, and lists do not contain it."""
    batch = create(ann, jsonl([line("a")]))
    for call in (
        lambda: bob.files.retrieve(batch.input_file_id),
        lambda: bob.files.content(batch.input_file_id),
        lambda: bob.files.delete(batch.input_file_id),
        lambda: bob.batches.retrieve(batch.id),
        lambda: bob.batches.cancel(batch.id),
        lambda: bob.batches.create(input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window="24h"),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert batch.input_file_id not in [each.id for each in bob.files.list()]
    assert batch.id not in [each.id for each in bob.batches.list()]
    assert batch.id in [each.id for each in ann.batches.list()]
    assert ended(ann, batch.id).status == "completed"


def test_lists_have_pages(ann):
    """The SDK follows `after`; the newest comes first, and `order` and `purpose` apply to files."""
    batches = [ended(ann, create(ann, jsonl([line("a")])).id) for _ in range(3)]
    ids = [batch.id for batch in ann.batches.list(limit=2)]
    assert ids[:3] == [batch.id for batch in reversed(batches)]
    assert len(ids) == len(set(ids))
    inputs = [file.id for file in ann.files.list(purpose="batch", order="asc", limit=1)]
    assert inputs[-3:] == [batch.input_file_id for batch in batches]
    with pytest.raises(openai.BadRequestError, match="limit"):
        ann.batches.list(limit=101)


def test_a_file_can_be_downloaded_and_deleted(ann):
    """The content is what was uploaded."""
    content = jsonl([line("é")])
    file = ann.files.create(
        file=("später.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.filename, file.bytes, file.purpose) == ("später.jsonl", len(content), "batch")
    assert file.expires_at == file.created_at + 3600
    assert ann.files.content(file.id).read() == content
    assert ann.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        ann.files.retrieve(file.id)


def test_a_file_above_the_payload_limit_is_refused(ann):
    """With 413, as every body."""
    with pytest.raises(openai.APIStatusError) as refused:
        ann.files.create(file=("in.jsonl", b"x" * 200_000), purpose="batch")
    assert refused.value.status_code == 413


def test_the_routes_need_a_key(url):
    """As all others of the server."""
    with openai.OpenAI(base_url=url, api_key="eve", max_retries=0) as eve, pytest.raises(openai.AuthenticationError):
        eve.files.list()


def test_an_ended_batch_cannot_be_cancelled(ann):
    with pytest.raises(openai.BadRequestError, match="ended"):
        ann.batches.cancel(ended(ann, create(ann, jsonl([line("a")])).id).id)


# --- bodies ---------------------------------------------------------------------------------------------------


def upload(body: bytes, content_type: str = "multipart/form-data; boundary=XX") -> object:
    route = next(route for route in ROUTES if route.form)
    return route.parse(Incoming(body=body, headers={"content-type": content_type})).request


def part(name: str, content: bytes, more: str = "") -> bytes:
    return f'--XX\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


GOOD = part("purpose", b"batch") + part("file", b"{}\r\n--X", '; filename="a.jsonl"') + b"--XX--\r\n"


def test_a_form_keeps_every_byte_of_its_file():
    """Line ends and pieces of the boundary belong to the content."""
    assert upload(GOOD).content == b"{}\r\n--X"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(b"", MalformedBody, id="empty"),
        pytest.param(GOOD.removesuffix(b"--\r\n"), MalformedBody, id="cut-off"),
        pytest.param(b"x" + GOOD, MalformedBody, id="text-before"),
        pytest.param(b"--XX\r\n\r\n--XX--", MalformedBody, id="no-disposition"),
        pytest.param(part("a", b"") * 20 + b"--XX--", MalformedBody, id="many-parts"),
        pytest.param(part("purpose", b"batch") + b"--XX--", MissingField, id="no-file"),
        pytest.param(part("file", b"x") + b"--XX--", MissingField, id="no-purpose"),
        pytest.param(GOOD.replace(b"batch", b"fine-tune"), InvalidField, id="purpose"),
        pytest.param(part("expires_after[seconds]", b"1e9") + GOOD, InvalidField, id="expiry"),
        pytest.param(part("other", b"1") + GOOD, InvalidField, id="unknown-field"),
    ],
)
def test_an_invalid_upload_is_refused(body, error):
    with pytest.raises(error):
        upload(body)


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "multipart/form-data",
        f"multipart/form-data; boundary={'x' * 71}",
        f"multipart/form-data; boundary=XX{' ' * 512}",  # the search for its end takes long
    ],
    ids=["json", "no boundary", "a long boundary", "a long header"],
)
def test_an_upload_must_be_a_form(kind):
    with pytest.raises(UnsupportedMediaType):
        upload(GOOD, kind)


@pytest.mark.parametrize(
    "changed",
    [
        {"endpoint": "/v1/chat/completions"},
        {"completion_window": "1h"},
        {"input_file_id": None},
        {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
        {"metadata": {"a" * 65: ""}},
        {"metadata": {str(index): "" for index in range(17)}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_invalid_batch_is_refused(changed):
    body = {"input_file_id": "file-1", "endpoint": ENDPOINT, "completion_window": "24h", **changed}
    route = next(route for route in ROUTES if route.path == "/v1/batches" and route.method == "POST")
    with pytest.raises((InvalidField, WrongType)):
        route.parse(incoming(body))
