"""`vectord embed` and `rerank`: a few texts, without a server."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from tests.pages import write_pages
from tests.pdfs import pdf_of
from tests.products.test_real_models import write_splade
from tests.towers import image_of, write_towers

from vectord import Embedder
from vectord.cli.main import run
from vectord.library.embedder import IMAGES_PER_REQUEST

TEXTS = ["That is a happy person", "That is a glad person", "It rains"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


def test_each_text_is_a_line_with_the_numbers_of_its_vector(
    embedder: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = embedder.embed(TEXTS)
    assert run(["embed", *TEXTS]) == 0
    lines = capsys.readouterr().out.splitlines()
    np.testing.assert_allclose([json.loads(line) for line in lines], expected, atol=1e-6)
    assert run(["embed", "--json", *TEXTS]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    np.testing.assert_allclose(answer["embeddings"], expected, atol=1e-6)


def test_similar_compares_the_first_text_with_the_others(
    embedder: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = embedder.embed(TEXTS)
    assert run(["embed", "--similar", TEXTS[0], TEXTS[2], TEXTS[1]]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert rows == [[f"{first @ other:.4f}", text] for other, text in zip(others, TEXTS[1:], strict=True)]


def test_the_texts_are_ranked_for_a_query(embedder: Embedder, capsys: pytest.CaptureFixture[str]) -> None:
    expected = embedder.rerank("happy", TEXTS, top_k=2)
    assert run(["rerank", "happy", *TEXTS, "--top-n", "2", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(one["index"], one["text"]) for one in results] == [(one.index, one.document) for one in expected]


@pytest.mark.parametrize("words", [["embed", "--similar"], ["rerank", "happy"]])
def test_lines_of_standard_input_are_texts(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfa glad person\r\njoy\n")))
    assert run(words) == 0
    assert "joy" in capsys.readouterr().out


def test_a_line_ends_at_a_line_feed_only(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And there may be more lines than a request has inputs."""
    texts = ["a\fb", "c\u2028d", "", "e"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    assert run(["embed", "--max-client-batch-size", "2"]) == 0
    vectors = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(vectors, embedder.embed(texts), atol=1e-6)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["embed", "--similar", "a"], 2, "--similar: expected two texts or more"),
        (["embed"], 2, "expected a TEXT"),
        (["embed", "a", "--port", "x"], 2, "--port (command line): expected"),
        (["rerank", "a", "b", "--model-aliases", "a=b"], 2, "model_aliases: a: no model is served as 'b'"),
        (["embed", "a", "word " * 400], 1, "TEXT[1]"),
        (["embed", "a", "--model", "missing/folder/here"], 1, "missing/folder/here"),
        (["rerank", "a"], 2, "standard input: line 2 is not UTF-8"),
    ],
)
def test_a_refusal_is_one_line(
    words: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = b"caf\nca\xe9\n" if "UTF-8" in message else b""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert run(words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_towers(tmp_path_factory.mktemp("clip") / "clip", "CLIP")


def test_pictures_are_searched_by_a_text(tmp_path: Path, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a folder whose name ends with a slash, and the pages of PDFs; a text that is no file stays one."""
    (tmp_path / "pictures/deep").mkdir(parents=True)
    names = ["pictures/deep/a.png", "pictures/b.JPG"]
    for seed, name in enumerate(names):
        image_of(40, 30, seed=seed).save(tmp_path / name)
    (tmp_path / "pictures/c.pdf").write_bytes(pdf_of())
    (tmp_path / "pictures/notes.txt").write_text("no picture")
    words = ["--similar", "a fox", "pictures/", "none.png", "--model", str(clip), "--dtype", "float32", "--json"]
    assert run(["embed", *words]) == 0
    found = {one["text"]: one["score"] for one in json.loads(capsys.readouterr().out)["results"]}
    given = ["a fox", *map(Path, names), Path("pictures/c.pdf"), "none.png"]
    with Embedder(str(clip), dtype="float32", offline=True) as embedder:
        query, *vectors = embedder.embed(given)
    shown = [*names, *[f"pictures/c.pdf, page {page}" for page in (1, 2, 3)], "none.png"]
    assert found.keys() == set(shown)
    for name, vector in zip(shown, vectors, strict=True):
        assert found[name] == pytest.approx(float(query @ vector), abs=1e-5)


def test_a_picture_for_a_model_of_texts_names_one_for_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_of(40, 30).save(tmp_path / "a.png")
    assert run(["embed", "a.png"]) == 1
    assert "--model openai/clip-vit-base-patch32" in capsys.readouterr().err


def test_images_are_ranked_by_the_vectors_of_their_patches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a model of pages, which has no single vector; more images than one request has."""
    folder, shown = write_pages(tmp_path / "model", "colmodernvbert"), tmp_path / "shown"
    shown.mkdir()
    paths = [shown / f"{i:02}.png" for i in range(IMAGES_PER_REQUEST + 1)]
    for i, path in enumerate(paths):
        image_of(60, 40, seed=i).save(path)
    (shown / "x.pdf").write_bytes(pdf_of())
    names = [*map(str, paths), *(f"{shown / 'x.pdf'}, page {page}" for page in (1, 2, 3))]
    model = ["--model", str(folder), "--offline", "--dtype", "float32"]
    with Embedder(str(folder), dtype="float32", offline=True) as embedder:
        matrices = embedder.embed([*paths, shown / "x.pdf"], outputs=("colbert",)).colbert
        (query,) = embedder.embed(["a fox"], outputs=("colbert",), kind="query").colbert
    assert run(["rerank", "a fox", f"{shown}/", *model, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["text"] for one in results] == [names[one["index"]] for one in results] and len(results) == len(names)
    for one in results:
        assert one["score"] == pytest.approx((query @ matrices[one["index"]].T).max(axis=1).sum(), abs=1e-3)
    assert [one["score"] for one in results] == sorted((one["score"] for one in results), reverse=True)
    assert run(["embed", "--similar", "a fox", f"{shown}/", *model, "--json"]) == 0
    similar = json.loads(capsys.readouterr().out)["results"]
    assert similar == [{**one, "index": one["index"] + 1} for one in results]


def test_texts_are_compared_by_a_sparse_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the dot product of the query and each text."""
    folder = str(write_splade(tmp_path / "splade"))
    words = ["embed", "--similar", *TEXTS, "--model", folder, "--offline", "--dtype", "float32", "--json"]
    assert run(words) == 0
    found = {one["index"]: one["score"] for one in json.loads(capsys.readouterr().out)["results"]}
    with Embedder(folder, dtype="float32", offline=True) as embedder:
        query, *others = embedder.embed(TEXTS, outputs=("sparse",)).sparse
    weights = dict(zip(query.indices.tolist(), query.values.tolist(), strict=True))
    for i, other in enumerate(others, 1):
        pairs = zip(other.indices.tolist(), other.values.tolist(), strict=True)
        assert found[i] == pytest.approx(sum(weights.get(token, 0) * value for token, value in pairs), rel=1e-4)
