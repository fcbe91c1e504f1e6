"""vectord.Embedder: the engine in a Python program, shared by threads and event loops."""

from __future__ import annotations

import asyncio
import errno
import gc
import inspect
import io
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.checkpoints.kinds.test_scores_classifier import save_bert_classifier
from tests.models import MAX_TOKENS, WIDTH, write_bert
from tokenizers import Tokenizer

from vectord import Embedder
from vectord.compute.backends.base import Answers, TokenBatch
from vectord.compute.backends.fake import FakeBackend
from vectord.config import DEFAULT_MODEL
from vectord.engine.engine import Engine
from vectord.engine.queue.admission import Speed
from vectord.errors import ConfigError, InputTooLong, InvalidField, ModelUnavailable, ShuttingDown
from vectord.library.embedder import TEXTS_PER_REQUEST
from vectord.schema import Caller, Request, Result

TEXTS = ["hello world", "a b c", "the quick brown fox " * 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("model") / "bert")


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[Embedder]:
    with Embedder(str(folder), dtype="float32", offline=True) as made:
        yield made


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def printed_by(program: str) -> str:
    """By a program that ends well."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert done.stderr == ""
    return done.stdout


def test_the_import_needs_neither_server_nor_engine() -> None:
    """Of other packages, `from vectord import Embedder` imports numpy and msgspec: a fraction of a second."""
    code = "import sys; before = {*sys.modules}; from vectord import Embedder; print(*sorted({*sys.modules} - before))"
    output = printed_by(code).split()
    packages = {name.partition(".")[0].removeprefix("_") for name in output} - sys.stdlib_module_names
    assert {name for name in packages if find_spec(name)} <= {"vectord", "numpy", "msgspec", "typing_extensions"}
    heavy = {"vectord.config", "vectord.engine.engine", "vectord.compute", "vectord.text", "vectord.checkpoints.folder"}
    assert not heavy & set(output)


def test_vectors_of_lists_and_single_texts(embedder: Embedder) -> None:
    """Rows have length 1 and keep the order, across requests too; a single text is a vector."""
    many = [f"text {i}" for i in range(2 * TEXTS_PER_REQUEST + 3)]
    vectors = embedder.embed(many)
    assert (vectors.shape, vectors.dtype) == ((len(many), WIDTH), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for i in (0, TEXTS_PER_REQUEST - 1, TEXTS_PER_REQUEST, len(many) - 1):
        np.testing.assert_allclose(embedder.embed(many[i]), vectors[i], atol=1e-5)
    assert embedder.embed([]).shape == (0, 0)
    assert embedder.embed([], outputs=("tokens",)).tokens == []


def test_no_call_is_too_large(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls wait for a slow device: the limits that protect a server do not apply."""
    monkeypatch.setattr(Speed, "tokens_per_s", 1.0)
    texts = ["hello world"] * 2100
    assert len(embedder.embed(texts)) == len(embedder.rerank("hello", texts)) == len(texts)


def test_several_outputs(embedder: Embedder) -> None:
    """One pass gives all kinds; long texts are named."""
    found = embedder.embed(TEXTS, outputs=("dense", "tokens"))
    assert found.dense.shape == (3, WIDTH)
    assert [len(rows) for rows in found.tokens][2] == MAX_TOKENS
    assert (found.sparse, found.colbert, found.truncated) == (None, None, [2])
    assert len(found.fingerprint) == 16
    np.testing.assert_allclose(embedder.embed(TEXTS, outputs="dense"), found.dense, atol=1e-5)
    assert len(embedder.embed(TEXTS, outputs="tokens").tokens) == 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_embeddings": True},
        {"truncate_dim": 8},
        {"truncate_dim": 8, "normalize_embeddings": True},
        {"prompt": "query: "},
        {"prompt_name": "query"},
        {"precision": None},
        {"convert_to_tensor": True},
        {"precision": "ubinary"},
        {"precision": "binary"},
        {"batch_size": 2, "show_progress_bar": False, "device": "cpu", "pool": None, "chunk_size": 3},
    ],
    ids=str,
)
def test_encode_equals_sentence_transformers(options: dict[str, Any], embedder: Embedder, library: Any) -> None:
    """The same arguments give the same array, for a list and for a text."""
    for inputs in (TEXTS, TEXTS[0]):
        want = library.encode(inputs, **options)
        got = embedder.encode(inputs, **options)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, atol=1e-4)
    got, want = embedder.encode([], **options), library.encode([], **options)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_encode_with_a_scale_of_the_texts(precision: Any, embedder: Embedder, library: Any) -> None:
    """As the library takes it. A number next to a step may be on its other side; a single text has no scale."""
    want, got = library.encode(TEXTS, precision=precision), embedder.encode(TEXTS, precision=precision)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
    for model in (library, embedder):
        with pytest.raises(ValueError, match="int8"):
            model.encode(TEXTS[0], precision=precision)


def test_encode_applies_the_models_own_normalize(folder: Path, library: Any, tmp_path: Path) -> None:
    """As the library does without normalize_embeddings; a cut vector stays as it is then."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    model = SentenceTransformer(modules=[*library, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    with Embedder(str(tmp_path / "saved"), dtype="float32") as made:
        for options in ({}, {"truncate_dim": 8}):
            np.testing.assert_allclose(made.encode(TEXTS, **options), model.encode(TEXTS, **options), atol=1e-5)


def test_the_folders_truncate_dim_is_the_default_of_dimensions(folder: Path, tmp_path: Path) -> None:
    """As in the library; another width can be requested, also a larger one. Each space has a name of its own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    model = SentenceTransformer(modules=[*SentenceTransformer(str(folder)), Normalize()], device="cpu", truncate_dim=8)
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    library = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    with Embedder(str(tmp_path / "saved"), dtype="float32") as made:
        for options in ({}, {"truncate_dim": 16}, {"truncate_dim": WIDTH}, {"normalize_embeddings": True}):
            np.testing.assert_allclose(made.encode(TEXTS, **options), library.encode(TEXTS, **options), atol=1e-5)
        usual, same, whole = (
            made.embed(TEXTS, outputs=("dense", "tokens"), dimensions=size) for size in (None, 8, WIDTH)
        )
        ranked = made.rerank(TEXTS[0], TEXTS)
    assert (usual.dense.shape, whole.dense.shape) == ((3, 8), (3, WIDTH))
    assert (usual.fingerprint, same.fingerprint) == (f"{whole.fingerprint}:8",) * 2
    cosines = usual.dense @ usual.dense[0]
    np.testing.assert_allclose([one.score for one in ranked], [cosines[one.index] for one in ranked], atol=1e-5)


@pytest.mark.parametrize("names", [("query", "document", "other"), ("search_query",)], ids=str)
def test_encode_with_the_models_prompts(names: tuple[str, ...], library: Any, tmp_path: Path) -> None:
    """As the library applies them: the default one, by name, for queries and for documents. Every model has the names
    query and document: empty where it has none, although it has a prompt for queries under another name."""
    from sentence_transformers import SentenceTransformer

    prompts = {name: f"the {name} " for name in names}
    model = SentenceTransformer(modules=[*library], prompts=prompts, default_prompt_name=names[-1], device="cpu")
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    with Embedder(str(tmp_path / "saved"), dtype="float32") as made:
        for call, options in (
            *(("encode", {"prompt_name": name}) for name in ("query", "document", names[-1], None)),
            *((call, {}) for call in ("encode_query", "encode_document") if len(names) > 1),
            ("encode_query", {"prompt_name": names[-1]}),
            ("encode_query", {"prompt": "hello "}),
        ):
            want = getattr(model, call)(TEXTS, **options)
            np.testing.assert_allclose(getattr(made, call)(TEXTS, **options), want, atol=1e-5)
        np.testing.assert_array_equal(made.encode(sentences=TEXTS), made.encode(TEXTS))


def test_encode_to_tensors(embedder: Embedder, library: Any) -> None:
    """Of texts and, as a list of matrices, of their tokens."""
    import torch

    assert torch.is_tensor(embedder.encode(TEXTS, convert_to_tensor=True))
    assert all(map(torch.is_tensor, embedder.encode(TEXTS, convert_to_numpy=False)))
    got, want = (model.encode(TEXTS, output_value="token_embeddings") for model in (embedder, library))
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    one = embedder.encode(TEXTS[0], output_value="token_embeddings")
    torch.testing.assert_close(one, got[0], atol=1e-5, rtol=0)


def test_encode_refuses_the_librarys_own_features(embedder: Embedder) -> None:
    """output_value=None gives the tensors of the library's modules, which vectord does not have. A precision of token
    embeddings and truncate_dim=0 have another meaning in each version."""
    with pytest.raises(ValueError, match="truncate_dim must not be 0"):
        embedder.encode("a", truncate_dim=0)
    with pytest.raises(ValueError, match="output_value"):
        embedder.encode("a", output_value=None)
    with pytest.raises(ValueError, match="sentence embeddings only"):
        embedder.encode("a", output_value="token_embeddings", precision="int8")
    for texts in (TEXTS, []):
        with pytest.raises(ValueError, match="no precision 'float16'; there are: float32, int8"):
            embedder.encode(texts, precision="float16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "arguments", "options", "place"),
    [
        ("embed", (["a", ["b", "c"]],), {}, ("texts", 1)),
        ("embed", ({"text": "a"},), {}, ("texts", None)),
        ("encode", ([("a", "b")],), {}, ("inputs", 0)),
        ("rerank", (None, ["a"]), {}, ("query", None)),
        ("rerank", ("a", "b"), {}, ("documents", None)),
        ("rerank", ("a", ["b", b"c"]), {}, ("documents", 1)),
        ("rerank", ("a", ["b"]), {"top_k": -1}, ("top_k", None)),
        ("embed", ("a",), {"outputs": "dance"}, ("outputs", None)),
        ("classify", (["a", 1],), {}, ("texts", 1)),
        ("embed", ("a",), {"kind": "passage"}, ("kind", None)),
        ("embed", ("a",), {"precision": "float16"}, ("precision", None)),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(
    call: str, arguments: tuple[Any, ...], options: dict[str, Any], place: tuple[str, int | None], embedder: Embedder
) -> None:
    """A pair or a mapping would otherwise have a vector of something else."""
    with pytest.raises(InvalidField) as caught:
        getattr(embedder, call)(*arguments, **options)
    assert (caught.value.field, caught.value.index) == place


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dtype": "float99"}, "dtype: expected one of auto, float32"),
        ({"device": "cudaa"}, "device: expected auto, cpu, cuda"),
        ({"threads": 0}, "threads: expected a whole number from 1 to 1024, got 0"),
        ({"pooling": "x"}, "pooling: expected one of cls, mean"),
        ({"cache_bytes": -1}, "cache_bytes: expected a whole number from 0"),
    ],
    ids=str,
)
def test_a_bad_option_of_an_embedder_is_refused(option: dict[str, Any], message: str, folder: Path) -> None:
    """Before a model loads, as by `vectord serve`."""
    with pytest.raises(ConfigError, match=f"^{message}"):
        Embedder(str(folder), offline=True, **option)


def test_options_have_the_synonyms_of_the_server(folder: Path) -> None:
    """fp32 is float32, and a generator is a list."""
    with Embedder(str(folder), offline=True, dtype="fp32", backend="fake") as made:
        assert made.embed(text for text in TEXTS).shape == (3, WIDTH)


def test_rerank(embedder: Embedder) -> None:
    """Best first; the same text is the best."""
    ranked = embedder.rerank("hello world", TEXTS, top_k=2)
    assert (len(ranked), ranked[0].document) == (2, "hello world")
    assert ranked[0].score > ranked[1].score
    assert embedder.rerank("hello world", []) == []


def test_help_lists_the_options_of_embed(embedder: Embedder) -> None:
    """With their defaults, and no type of a result; the twin for asyncio has the same. A wrong one is a TypeError."""
    options = inspect.signature(Embedder.embed).parameters
    assert options["outputs"].default == "dense"
    assert options["truncate"].default is True
    assert inspect.signature(Embedder.aembed).parameters == options
    assert inspect.signature(Embedder.arerank).parameters == inspect.signature(Embedder.rerank).parameters
    for call in (Embedder.embed, Embedder.aembed, Embedder.rerank, Embedder.arerank):
        assert "Coroutine" not in str(inspect.signature(call)), "the inner call's result"
    assert "asyncio" in str(Embedder.aembed.__doc__) and "asyncio" not in str(Embedder.embed.__doc__)
    with pytest.raises(TypeError, match=r"Embedder\.embed\(\) got an unexpected keyword argument 'normalise'"):
        embedder.embed("a", normalise=True)  # type: ignore[call-arg]


def test_the_facts_of_an_embedder(embedder: Embedder) -> None:
    assert (embedder.dimensions, len(embedder.models)) == (WIDTH, 1)
    assert repr(embedder) == f"Embedder({embedder.models[0]!r}, dimensions={WIDTH}, max_tokens={embedder.max_tokens})"


def test_similarity_is_that_of_sentence_transformers(embedder: Embedder) -> None:
    """Cosines of dense vectors of any length, and MaxSim of ColBERT matrices."""
    from sentence_transformers.util import cos_sim

    vectors = embedder.embed(TEXTS, normalize=False)
    np.testing.assert_allclose(Embedder.similarity(vectors, vectors[:2]), cos_sim(vectors, vectors[:2]), atol=1e-6)
    generator = np.random.default_rng(0)
    queries, texts = ([generator.normal(size=(n, 4)) for n in lengths] for lengths in ((2, 3), (5, 1, 4)))
    found = Embedder.similarity(queries, texts)
    assert found.shape == (2, 3)
    assert found[1, 2] == pytest.approx(sum(max(float(a @ b) for b in texts[2]) for a in queries[1]), rel=1e-5)
    np.testing.assert_allclose(
        Embedder.similarity(list(vectors), vectors.tolist()), cos_sim(vectors, vectors), atol=1e-6
    )
    for texts_themselves in ("hello", ["hello", "world"], None):
        with pytest.raises(InvalidField, match="`second` must be vectors, as `embed` returns them, not "):
            Embedder.similarity(vectors, texts_themselves)


def test_tokenize_gives_the_tokens_of_the_model(embedder: Embedder, folder: Path) -> None:
    want = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hello world").ids
    assert [token.id for token in embedder.tokenize("hello world")[0]] == want
    assert embedder.tokenize([]) == []


def test_classify_gives_the_labels_best_first(tmp_path: Path) -> None:
    save_bert_classifier(tmp_path, 3)
    with Embedder(str(tmp_path), offline=True) as made:
        (labels, _) = made.classify(["a", "b"])
    assert len(labels) > 1
    assert [one.score for one in labels] == sorted((one.score for one in labels), reverse=True)


def test_threads_share_one_embedder(embedder: Embedder) -> None:
    """Every thread gets the vectors of its own texts."""
    texts = [[f"thread {i} text {j}" for j in range(20)] for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for own, vectors in zip(texts, pool.map(embedder.embed, texts), strict=True):
            np.testing.assert_allclose(vectors, embedder.embed(own), atol=1e-5)


def test_a_lone_call_runs_in_its_own_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call beside another waits in the queue, where concurrent calls form batches. The vectors are the same."""
    threads, forward, gate, entered = list[int](), FakeBackend.forward, threading.Event(), threading.Event()
    gate.set()

    def watched(self: FakeBackend, batch: TokenBatch, stream: int) -> Answers:
        threads.append(threading.get_ident())
        entered.set()
        assert gate.wait(10)
        return forward(self, batch, stream)

    with Embedder(str(folder), backend="fake", pooling="mean") as embedder, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(FakeBackend, "forward", watched)
        options: dict[str, Any] = {"kind": "query", "dimensions": 8, "force_dimensions": True, "precision": "int8"}
        lone = [embedder.embed("a"), embedder.embed(["a"]), embedder.embed("a", **options)]
        assert threads == [threading.get_ident()] * 3
        gate.clear(), entered.clear()
        beside = pool.submit(asyncio.run, embedder.aembed("a"))
        assert entered.wait(10)
        threading.Timer(0.1, gate.set).start()
        queued = [
            embedder.embed("a"),
            asyncio.run(embedder.aembed(["a"])),
            asyncio.run(embedder.aembed("a", **options)),
        ]
        assert threads.count(threading.get_ident()) == 3
        for one, other in zip([beside.result(), *lone], [lone[0], *queued], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


class TimeIsUp(Exception):
    """As task queues raise it in a job."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeIsUp])
def test_a_signal_handler_may_end_a_lone_call(
    error: type[BaseException], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the main thread, which may be in the forward. It cannot call the Embedder, whose device is taken. The
    Embedder answers afterwards."""
    refused = list[str]()

    def handle(*_: object) -> None:
        for texts in ("b", ["b", "c"]):  # alone, and in the queue
            with pytest.raises(RuntimeError, match="signal handler") as caught:
                embedder.embed(texts)
            refused.append(str(caught.value))
        raise error

    def interrupted(self: FakeBackend, batch: TokenBatch, stream: int) -> Answers:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not interrupted")

    before = signal.signal(signal.SIGINT, handle)
    try:
        with Embedder(str(folder), backend="fake", pooling="mean") as embedder:
            monkeypatch.setattr(FakeBackend, "forward", interrupted)
            with pytest.raises(error):
                embedder.embed("a")
            assert len(refused) == 2
            np.testing.assert_array_equal(embedder.embed("a"), asyncio.run(embedder.aembed("a")))
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_handler_may_close_the_embedder_during_a_lone_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the call that it interrupts has the device, and ends before the models are unloaded."""
    forward, closed_s = FakeBackend.forward, list[float]()

    def handle(*_: object) -> None:
        began_s = time.monotonic()
        embedder.close()
        closed_s.append(time.monotonic() - began_s)

    def interrupted(self: FakeBackend, batch: TokenBatch, stream: int) -> Answers:
        signal.raise_signal(signal.SIGINT)
        return forward(self, batch, stream)

    before = signal.signal(signal.SIGINT, handle)
    try:
        with Embedder(str(folder), backend="fake", pooling="mean") as embedder:
            vector = embedder.embed("a")
            monkeypatch.setattr(FakeBackend, "forward", interrupted)
            np.testing.assert_array_equal(embedder.embed("a"), vector)
            assert closed_s[0] < 1
            with pytest.raises(ShuttingDown):
                embedder.embed("a")
    finally:
        signal.signal(signal.SIGINT, before)


async def test_calls_on_an_event_loop(embedder: Embedder, capsys: pytest.CaptureFixture[str]) -> None:
    """The twins answer as the blocking calls, also with a progress bar, and the loop continues meanwhile."""
    vectors, ranked = await asyncio.gather(embedder.aembed(TEXTS), embedder.arerank("hello world", TEXTS))
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS), atol=1e-5)
    assert ranked == embedder.rerank("hello world", TEXTS)
    shown = [await embedder.aembed(TEXTS, show_progress=True), embedder.embed(TEXTS, show_progress=True)]
    np.testing.assert_allclose(shown, [vectors, vectors], atol=1e-5)
    assert capsys.readouterr().err.count("100%") == 2


def test_an_error_has_the_index_in_the_callers_list(embedder: Embedder) -> None:
    """Not in the request that was made of a part of it."""
    texts = ["short"] * TEXTS_PER_REQUEST + ["word " * 400]
    with pytest.raises(InputTooLong) as caught:
        embedder.embed(texts, truncate=False)
    assert caught.value.index == TEXTS_PER_REQUEST
    assert str(caught.value).startswith(f"`texts[{TEXTS_PER_REQUEST}]` must have at most")


def test_a_notebook_shows_the_bar_as_text(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich's widget would need ipywidgets: without them it draws nothing, and warns."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("vectord.library.embedder.LARGE_TEXTS", 1)
    embedder.embed(TEXTS)
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["write", "flush"])
def test_a_progress_bar_that_cannot_be_drawn_loses_no_vectors(
    broken: str, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error may be a terminal that is gone."""

    class Gone(io.StringIO):
        def isatty(self) -> bool:
            return True

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    gone = Gone()
    setattr(gone, broken, fail)
    monkeypatch.setattr(sys, "stderr", gone)
    assert embedder.embed(TEXTS, show_progress=True).shape == (len(TEXTS), WIDTH)


def test_a_closed_embedder_refuses(folder: Path) -> None:
    """Closing twice is harmless."""
    made = Embedder(str(folder), backend="fake")
    made.close()
    made.close()
    with pytest.raises(ShuttingDown, match="closed"):
        made.embed("a")


def test_a_call_that_fails_after_the_engine_has_closed_returns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, began = Embedder(str(folder), backend="fake"), threading.Event()

    async def fail_later(self: Engine, request: Request, caller: Caller) -> Result:
        began.set()
        await asyncio.sleep(0.2)
        raise ShuttingDown

    monkeypatch.setattr(Engine, "answer", fail_later)

    def call() -> None:
        with pytest.raises(ShuttingDown):
            made.tokenize("a")

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert began.wait(10)
    made.close()
    thread.join(10)
    assert not thread.is_alive()


def test_an_embedder_that_closes_during_the_begin_of_a_call_refuses_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, submit = Embedder(str(folder), backend="fake"), asyncio.run_coroutine_threadsafe

    def submit_late(call: Any, loop: asyncio.AbstractEventLoop) -> Any:
        monkeypatch.undo()
        made.close()
        return submit(call, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit_late)
    with pytest.raises(ShuttingDown, match="closed"):
        made.tokenize("a")


def test_an_embedder_that_is_no_longer_used_closes(folder: Path) -> None:
    """Even if the garbage collector finds it in a thread that closing waits for."""
    cycle: list[Any] = [Embedder(str(folder), backend="fake")]
    loop, thread = cycle[0]._loop, cycle[0]._thread
    cycle.append(cycle)
    del cycle
    loop.call_soon_threadsafe(gc.collect)
    thread.join(60)
    assert not thread.is_alive()


def test_callers_with_the_same_settings_share_an_embedder(folder: Path) -> None:
    """A name is the setting `models`. An Embedder stands for itself; a closed one is not shared any more."""
    with Embedder.shared({"models": [str(folder)], "backend": "fake"}) as made:
        assert Embedder.shared(made) is made
        assert Embedder.shared(made.settings) is made
        assert pickle.loads(pickle.dumps(made)) is made
        with Embedder.shared(str(folder)) as other:
            assert other is not made
            assert other.settings == {**made.settings, "backend": "auto"}
    with Embedder.shared(made.settings) as again:
        assert again.embed("a").shape == (WIDTH,)


def test_a_model_that_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    """The constructor raises the reason, before or while the model loads."""
    with pytest.raises(ModelUnavailable, match="not a folder"):
        Embedder(str(tmp_path / "missing"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnavailable, match=r"could not be loaded: .*tokenizer"):
        Embedder(str(tmp_path))


@pytest.mark.parametrize("program", ["e = {made}; print(e.embed('a').shape)", "print({made}.embed('a').shape)"])
def test_a_program_may_end_without_closing(program: str, folder: Path) -> None:
    """The models are unloaded when the program ends or no longer uses them, without a message."""
    made = f"Embedder({str(folder)!r}, backend='fake', pooling='mean')"
    assert printed_by(f"from vectord import Embedder; {program.format(made=made)}") == f"({WIDTH},)\n"


ENDS = {
    "error": ("raise ValueError", 1),
    "interrupt": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "two": ("other = Embedder(folder, threads=2); other.embed('a')", 0),
    "loading": ("threading.Thread(target=Embedder, args=[folder], daemon=True).start()", 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_with_its_own_code_on_a_busy_machine(end: str, tmp_path: Path) -> None:
    """Without closing, while the second plan compiles, and when closing gives up waiting, as on a busy machine."""
    statement, code = ENDS[end]
    program = f"""
import signal, sys, threading
from functools import partialmethod
from vectord import Embedder
from vectord.engine.engine import Engine

signal.signal(signal.SIGINT, signal.default_int_handler)
Engine.close = partialmethod(Engine.close, 0.01)
folder = {DEFAULT_MODEL!r}
embedder = Embedder(folder, threads=2)
embedder.embed("a")
{statement}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, "terminate called" in done.stderr) == (code, False), done.stderr


def test_the_end_of_a_program_waits_for_the_forward_that_runs(folder: Path) -> None:
    """A thread that returned from native code later would abort the process."""
    program = f"""
import threading, time
from functools import partialmethod
from vectord import Embedder
from vectord.compute.backends.fake import FakeBackend
from vectord.engine.engine import Engine

def forward(self, batch, stream):
    entered.set()
    threading.Event().wait(1)  # the main thread has ended by then, and waits at the program's exit
    print("the forward has ended", flush=True)
    return self.forward_exact(batch)

Engine.close = partialmethod(Engine.close, 0.01)
embedder = Embedder({str(folder)!r}, backend="fake", pooling="mean")
FakeBackend.forward, entered = forward, threading.Event()
threading.Thread(target=embedder.embed, args=["a"], daemon=True).start()
entered.wait()
"""
    assert printed_by(program) == "the forward has ended\n"


def test_a_fork_of_the_process_ends(folder: Path) -> None:
    """It has none of the Embedder's threads: calls are refused, and its end waits for nothing."""
    code = f"""
from multiprocessing import get_context
from vectord import Embedder
from vectord.errors import ShuttingDown

def run(embedder):
    try:
        embedder.embed("a")
    except ShuttingDown as error:
        print(error, flush=True)

with Embedder({str(folder)!r}, backend="fake", pooling="mean") as embedder:
    process = get_context("fork").Process(target=run, args=[embedder])
    process.start()
    process.join()
print(process.exitcode)
"""
    assert printed_by(code).splitlines() == ["This Embedder is closed, or was made before a fork of this process.", "0"]


def test_the_programs_of_the_page_run() -> None:
    """One after another, with the default model."""
    page = (Path(__file__).parents[2] / "docs/library.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    names["embedder"].close()
    assert names["best"] == names["ranking"][0].document == "The bridge was closed by noon."
    assert (names["vectors"].shape, names["query"].shape, names["array"].shape) == ((2, 384), (384,), (2, 128))
