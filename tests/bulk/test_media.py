"""Images and PDFs in `vectord bulk`: folders and columns of them, in this process and by a server."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.bulk.makers import FakeEmbedder, job_of, read_output, run_job, run_pipeline, stop_job, vector_of, write_input
from tests.pdfs import encrypted_pdf, pdf_of
from tests.real_server import running
from tests.towers import image_of, media_of, write_towers

from vectord import Client, Embedder
from vectord.bulk import pipeline
from vectord.bulk.database import DatabaseOutput, StoredRow
from vectord.bulk.inputs import find_source
from vectord.bulk.job import BulkFailed, BulkJob
from vectord.bulk.pipeline import Pipeline
from vectord.bulk.remote import RemoteEmbedder
from vectord.errors import ConfigError
from vectord.schema import PDF, Media

IMAGES = {f"{place}/{place}.png": media_of(image_of(20, 30, seed=place)) for place in range(3)}
ROWS = [  # path, page, input
    ("0/0.png", 1, IMAGES["0/0.png"]),
    ("1/1.png", 1, IMAGES["1/1.png"]),
    *[("1/a.PDF", page, Media(pdf_of(), type=PDF, page=page)) for page in (1, 2, 3)],
    ("2/2.png", 1, IMAGES["2/2.png"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures in folders, and a PDF of three pages."""
    folder = tmp_path / "in"
    for name, media in IMAGES.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(media.data)
    (folder / "1/a.PDF").write_bytes(pdf_of())
    return folder


@pytest.mark.parametrize("out", ["out.jsonl", "out.parquet", "out.arrow", "out.npy"])
async def test_a_folder_of_pictures_and_pdfs(folder: Path, tmp_path: Path, out: str) -> None:
    """A row for each picture and page, with the name of its file."""
    summary = await run_job(folder, tmp_path / out)
    found = read_output(tmp_path / out)
    assert summary.rows == len(found) == len(ROWS)
    for row, (path, page, media) in zip(found, ROWS, strict=True):
        if out != "out.npy":
            assert (row["path"], row["page"]) == (path, page)
            assert row.keys() == {"path", "page", "dense"}
        np.testing.assert_allclose(row["dense"], vector_of(media), rtol=1e-6)


async def test_texts_are_rows_among_pictures(folder: Path, tmp_path: Path) -> None:
    """All rows have the same columns, as a table needs them; a picture is one chunk."""
    (folder / "0/notes.txt").write_text("some words")
    await run_job(folder, tmp_path / "out.parquet", part_rows=2)
    found = read_output(tmp_path / "out.parquet")
    assert {tuple(row) for row in found} == {("path", "text", "page", "dense")}
    assert [row["text"] for row in found] == [None, "some words", *[None] * 5]


async def test_a_broken_file_fails_its_own_row(folder: Path, tmp_path: Path) -> None:
    """With --on-error null; without it, the job names the file."""
    (folder / "1/b.pdf").write_bytes(encrypted_pdf())
    with pytest.raises(BulkFailed, match=r"Row 5 \(1/b.pdf\), counted from 0: the input is an encrypted PDF"):
        await run_job(folder, tmp_path / "out.jsonl")
    summary = await run_job(folder, tmp_path / "out.jsonl", on_error="null")
    found = read_output(tmp_path / "out.jsonl")
    assert (summary.rows, summary.failed) == (7, 1)
    assert [(row["path"], row["error"]) for row in found if "error" in row] == [
        ("1/b.pdf", "the input is an encrypted PDF; remove its password.")
    ]
    assert found[5]["dense"] is None and found[6]["dense"] is not None


async def test_a_model_of_texts_is_refused_before_the_first_row(folder: Path, tmp_path: Path) -> None:
    """Unless rows may fail alone."""
    embedder = FakeEmbedder()
    embedder.modalities = ["text"]
    with pytest.raises(ConfigError, match="the model fake reads texts only; name one that reads images after OUT"):
        await run_job(folder, tmp_path / "out.jsonl", embedder)
    await run_job(folder, tmp_path / "out.jsonl", embedder, on_error="null")


async def test_an_interrupted_job_embeds_only_the_missing_pages(folder: Path, tmp_path: Path) -> None:
    """A part may end within a PDF."""
    await stop_job(job_of(folder, tmp_path / "out.jsonl", part_rows=2), ROWS[4][2])
    rest = FakeEmbedder()
    summary = await run_job(folder, tmp_path / "out.jsonl", rest, part_rows=2)
    assert 0 < summary.resumed_from == len(ROWS) - len(rest.seen)
    assert [(row["path"], row["page"]) for row in read_output(tmp_path / "out.jsonl")] == [row[:2] for row in ROWS]


URI = "data:image/png;base64,{}"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *[(name, form) for name in ("in.jsonl", "in.csv", "in.parquet", "in.txt") for form in ("paths", "data URIs")],
        ("in.jsonl", "absolute paths"),
        *[(name, form) for name in ("in.parquet", "in.arrow") for form in ("bytes", "structs of datasets")],
    ],
)
async def test_a_column_of_images(folder: Path, tmp_path: Path, name: str, form: str) -> None:
    """And of PDFs: paths from the folder of IN, data URIs, and in tables bytes."""
    files = ["0/0.png", "1/a.PDF", "2/2.png"]
    values: list[Any] = {
        "paths": [f"in/{file}" for file in files],
        "absolute paths": [str(folder / file) for file in files],
        "data URIs": [URI.format(base64.b64encode((folder / file).read_bytes()).decode()) for file in files],
        "bytes": [(folder / file).read_bytes() for file in files],
        "structs of datasets": [{"bytes": (folder / file).read_bytes(), "path": file} for file in files],
    }[form]
    column = "text" if name == "in.txt" else "image"
    source = write_input(tmp_path / name, [{"id": str(i), column: value} for i, value in enumerate(values)])
    await run_job(source, tmp_path / "out.jsonl", images=True)
    found = read_output(tmp_path / "out.jsonl")
    want = [ROWS[place] for place in (0, 2, 3, 4, 5)]
    assert [row["page"] for row in found] == [page for _, page, _ in want]
    np.testing.assert_allclose([row["dense"] for row in found], [vector_of(media) for *_, media in want], rtol=1e-6)


async def test_a_file_that_a_row_names_may_be_missing(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in.jsonl", [{"image": "none.png"}, {"image": None}, {"image": 3}])
    summary = await run_job(source, tmp_path / "out.jsonl", images=True, on_error="null")
    errors = [row["error"] for row in read_output(tmp_path / "out.jsonl")]
    assert summary.failed == 3
    assert errors[0] == "none.png cannot be read: No such file or directory"


class MemoryDatabase(DatabaseOutput):
    form = "memory"

    def __init__(self, job: BulkJob, stored: dict[Any, StoredRow]) -> None:
        super().__init__(job)
        self.stored = stored

    def _add_vector(self, kind: str, width: int) -> None: ...

    def _create(self) -> None: ...

    def _stored_columns(self) -> Iterable[str]:
        return []

    def _fingerprints(self, ids: Sequence[Any]) -> Iterable[str | None]:
        return [self.stored[id_].columns["vectord_fingerprint"] for id_ in ids if id_ in self.stored]

    def _upsert(self, entries: Sequence[StoredRow]) -> None:
        self.stored |= {entry.id: entry for entry in entries}


@pytest.mark.parametrize("id_column", [None, "path"])
async def test_a_database_stores_each_page_and_embeds_changed_files_again(
    folder: Path, tmp_path: Path, id_column: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a row has only the name of its file."""
    stored: dict[Any, StoredRow] = {}
    monkeypatch.setattr(pipeline, "output_of", lambda job: MemoryDatabase(job, stored))

    async def seen() -> list[Any]:
        options = {"out_url": "qdrant://host/c", "output_format": "qdrant", "id_column": id_column}
        embedder = FakeEmbedder()
        await run_pipeline(Pipeline(find_source(job_of(folder, tmp_path / "c", **options))), embedder)
        return embedder.seen

    assert (await seen(), await seen()) == ([media for *_, media in ROWS], [])
    assert len(stored) == len(ROWS)
    if id_column:
        assert {"0/0.png", "1/a.PDF#1", "1/a.PDF#3"} <= stored.keys()
    (folder / "0/0.png").write_bytes(IMAGES["2/2.png"].data)
    assert await seen() == [IMAGES["2/2.png"]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_towers(tmp_path_factory.mktemp("clip") / "clip", "CLIP")


@pytest.fixture(scope="module")
def url(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--dialects", "vectord", "--dtype", "float32", "--offline")
    with running(tmp_path_factory.mktemp("server") / "log", str(clip), *options) as (url, _):
        yield url


async def test_a_server_makes_the_vectors_of_the_library(clip: Path, url: str, folder: Path, tmp_path: Path) -> None:
    """Of pictures and of pages; a file that it refuses fails its own row."""
    (folder / "1/b.png").write_bytes(b"no picture")
    job = job_of(folder, tmp_path / "out.jsonl", on_error="null")
    async with RemoteEmbedder(url, None, job) as embedder:
        await run_pipeline(Pipeline(find_source(job)), embedder)  # type: ignore[arg-type]
    found = read_output(tmp_path / "out.jsonl")
    assert [row["path"] for row in found if "error" in row] == ["1/b.png"]
    with Embedder(str(clip), dtype="float32", offline=True) as library:
        want = library.embed([folder / name for name in ("0/0.png", "1/1.png", "1/a.PDF", "2/2.png")])
    made = np.array([row["dense"] for row in found if row["dense"]])
    np.testing.assert_allclose(made, want, atol=1e-5)


def test_the_client_sends_files_as_the_library_reads_them(clip: Path, url: str, folder: Path) -> None:
    """Paths and bytes among texts; a single PDF gives a matrix."""
    given = ["a fox", folder / "1/a.PDF", (folder / "0/0.png").read_bytes(), pdf_of(), folder / "2/2.png"]
    with Embedder(str(clip), dtype="float32", offline=True) as library, Client(url, texts_per_request=2) as client:
        np.testing.assert_allclose(client.embed(given), library.embed(given), atol=1e-5)
        assert client.embed(folder / "1/a.PDF").shape == (3, library.dimensions)
        assert client.embed(folder / "0/0.png").shape == (library.dimensions,)
        found = client.embed_all(given, outputs=["dense"])
        ranked, images = client.rerank("a fox", given[2::2]), library.rerank("a fox", given[2::2])
        assert [one.passage for one in ranked] == [one.document for one in images]
        np.testing.assert_allclose([one.score for one in ranked], [one.score for one in images], atol=1e-5)
    assert [(row.index, row.page) for row in found.pages] == [
        *[(0, None), (1, 1), (1, 2), (1, 3), (2, None), (3, 1), (3, 2), (3, 3), (4, None)]
    ]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"pdf": base64.b64encode(encrypted_pdf()).decode()}, "`inputs[1]` is an encrypted PDF"),
        ({"pdf": "%%%"}, "`inputs[1]`: the PDF is not valid base64"),
        ({"pdf": URI.format("AAAA")}, "`inputs[1]` has a file of another kind than a PDF"),
        ({}, "`inputs[1]` must have an `image` or a `pdf`"),
    ],
    ids=["encrypted", "no base64", "an image", "nothing"],
)
def test_the_server_names_the_input_at_fault(url: str, item: dict[str, str], words: str) -> None:
    good = {"pdf": URI.format(base64.b64encode(pdf_of()).decode()).replace("image/png", "application/pdf")}
    reply = httpx.post(f"{url}/vectord/embed", json={"inputs": [good, item]})
    assert reply.status_code == 400 and words in reply.json()["error"]["message"]
    pages = httpx.post(f"{url}/vectord/embed", json={"inputs": ["a fox", good]}).json()["data"]
    assert [(one["index"], one.get("page")) for one in pages] == [(0, None), (1, 1), (1, 2), (1, 3)]
