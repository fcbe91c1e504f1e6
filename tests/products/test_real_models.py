"""Whole servers with tiny random models of every kind return the numbers of the models' libraries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.models import write_bert, write_sentence_bert
from tests.reference.reference_models import write_bge_m3
from tests.server.live import Reply

from vectord import compose
from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig

Ask = Callable[..., Any]

QUERY = "many small birds"
PASSAGES = ["a lazy dog", "birds sing in green trees", "the quick brown fox jumps", "a lazy dog"]
LABELS = ["sad", "glad", "mad"]


@asynccontextmanager
async def serving(*folders: Path, names: Sequence[str] = (), **settings: Any) -> AsyncIterator[compose.Composition]:
    """A server whose models are loaded. names: of the models; by default those of their folders.

    settings: fields of ModelConfig, EngineConfig and ServerConfig.
    """
    model = {key: settings.pop(key) for key in ("composites", "lora") if key in settings}
    server = {key: settings.pop(key) for key in ("dialects", "own_token_ids", "allow_media_urls") if key in settings}
    names = tuple(names or [folder.name for folder in folders])
    config = Config(
        model=ModelConfig(models=tuple(map(str, folders)), served_model_name=names, offline=True, **model),
        device=DeviceConfig(backend="openvino", dtype="float32", num_threads=1),
        engine=EngineConfig(tokenization_workers=1, **settings),
        server=ServerConfig(admin_key="admin", **server),
    )
    composed = compose.build(config)
    async with composed.app.router.lifespan_context(composed.app):
        await composed.engine.loaded.wait()
        yield composed


@asynccontextmanager
async def served(*folders: Path, **settings: Any) -> AsyncIterator[Ask]:
    """A function that posts a body to the server of these models. settings: as in `serving`."""

    async def ask(path: str, verb: str = "POST", /, headers: dict[str, str] | None = None, **body: Any) -> Reply:
        answer = await client.request(verb, path, headers=headers, json=body or None)
        return Reply(answer.status_code, dict(answer.headers), answer.content)

    async with (
        serving(*folders, **{"dialects": ("tei", "openai", "vectord"), **settings}) as composed,
        httpx.AsyncClient(transport=httpx.ASGITransport(composed.app), base_url="http://vectord") as client,
    ):
        yield ask


def write_classifier(folder: Path, labels: list[str]) -> Path:
    """A random BERT with a score for each label; with one label, a cross-encoder."""
    from transformers import AutoTokenizer

    facts = {"num_labels": len(labels), "id2label": dict(enumerate(labels))}
    write_bert(folder, head="ForSequenceClassification", seed=1, **facts)
    names = ["input_ids", "token_type_ids", "attention_mask"]  # like a BERT's own tokenizer
    AutoTokenizer.from_pretrained(folder, model_input_names=names).save_pretrained(folder)
    return folder


def write_splade(folder: Path) -> Path:
    """A random BERT with its language model's head, saved by sentence-transformers as a SPLADE."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

    source = write_bert(folder / "source", head="ForMaskedLM", seed=2)
    encoder = SparseEncoder(modules=[MLMTransformer(str(source)), SpladePooling()], device="cpu")
    saved = folder / "splade"
    encoder.save(str(saved), create_model_card=False)
    return saved


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_bert(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("r") / "reranker", ["LABEL_0"])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("c") / "classifier", LABELS)


def logits_of(folder: Path, pairs: list[tuple[str, str]]) -> np.ndarray[Any, Any]:
    """(N, labels), by sentence-transformers."""
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    return np.asarray(model.predict(pairs, activation_fn=torch.nn.Identity())).reshape(len(pairs), -1)


def sigmoid(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def assert_sorted(results: list[dict[str, Any]], ties: int = 1) -> None:
    """Best first, each passage once. ties: 1 for equal scores in order; -1 for TEI's reversed order."""
    order = [(-result["score"], ties * result["index"]) for result in results]
    assert order == sorted(order)
    assert sorted(result["index"] for result in results) == list(range(len(PASSAGES)))


def by_index(results: list[dict[str, Any]]) -> list[float]:
    return [result["score"] for result in sorted(results, key=lambda result: result["index"])]


async def test_scores_of_a_reranker(reranker: Path, embedder: Path) -> None:
    """A cross-encoder's logits and probabilities, sorted. Equal passages have equal scores.

    It answers although another model is first, and a header has the kind of score.
    """
    logits = logits_of(reranker, [(QUERY, passage) for passage in PASSAGES])[:, 0]
    async with served(embedder, reranker) as ask:
        own = await ask("/vectord/rerank", query=QUERY, passages=PASSAGES)
        probable = await ask("/vectord/rerank", query=QUERY, passages=PASSAGES, scores="probability")
        raw = await ask("/rerank", query=QUERY, texts=PASSAGES, raw_scores=True)
        tei = await ask("/rerank", query=QUERY, texts=PASSAGES, return_text=True)
        root = await ask("/", query=QUERY, texts=PASSAGES, return_text=True)
        cut = await ask("/vectord/rerank", query=QUERY, passages=["dog " * 600, *PASSAGES[1:]], truncate=True)
    for reply, results, kind, expected, ties in (
        (own, own.json["results"], "logit", logits, 1),
        (probable, probable.json["results"], "probability", sigmoid(logits), 1),
        (raw, raw.json, "logit", logits, -1),
        (tei, tei.json, "probability", sigmoid(logits), -1),
    ):
        assert_sorted(results, ties)
        np.testing.assert_allclose(by_index(results), expected, atol=2e-4)
        assert reply.headers["x-vectord-score-kind"] == kind
    assert own.json["score_kind"] == "logit"
    assert [rank["text"] for rank in tei.json] == [PASSAGES[rank["index"]] for rank in tei.json]
    assert root.json == tei.json
    (warning,) = cut.json["warnings"]
    assert (warning["type"], warning["index"], warning["max_tokens"]) == ("passage_truncated", 0, 512)
    assert warning["kept"] < warning["seen"]
    assert cut.headers["x-vectord-truncated-inputs"] == "0"


@pytest.mark.parametrize("family", ["Bert", "ModernBert", "Qwen3"])
async def test_labels_of_tokens(tmp_path: Path, embedder: Path, family: str) -> None:
    """transformers' probabilities and logits of every token, special tokens included, in vLLM's form. The model embeds,
    too; another one is refused by name, and by default the first one with such a head answers."""
    import torch
    import transformers
    from transformers import AutoTokenizer

    folder, texts = write_bert(tmp_path / "tagger"), ["birds sing in green trees", "a lazy dog"]
    known = json.loads((folder / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    facts = {name: known[name] for name in (*sizes, "max_position_embeddings", "pad_token_id")}
    heads = {"num_key_value_heads": 2, "head_dim": 8} if family == "Qwen3" else {}
    config = getattr(transformers, f"{family}Config")(**facts, **heads, num_labels=5)
    model = getattr(transformers, f"{family}ForTokenClassification")(config).eval()
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = [model(input_ids=tokenizer(text, return_tensors="pt").input_ids).logits[0] for text in texts]
    async with served(embedder, folder, dialects=("vllm",)) as ask:
        found = await ask("/pooling", input=texts, task="token_classify")
        raw = await ask("/pooling", input=texts, task="token_classify", use_activation=False)
        usual = await ask("/pooling", input=texts, model="tagger")
        embedded = await ask("/v1/embeddings", input=texts, model="tagger")
        refused = await ask("/pooling", input=texts, task="token_classify", model=embedder.name)
    for shown, each, rows in zip(found.json["data"], raw.json["data"], logits, strict=True):
        np.testing.assert_allclose(shown["data"], torch.softmax(rows, dim=1).numpy(), atol=2e-4)
        np.testing.assert_allclose(each["data"], rows.numpy(), atol=2e-4)
    assert usual.json["data"] == found.json["data"]
    assert len(embedded.json["data"][0]["embedding"]) == model.config.hidden_size
    assert refused.status == 400
    assert refused.json["error"]["message"].startswith("Unsupported task: 'token_classify'")


async def test_labels_of_a_classifier(classifier: Path) -> None:
    """The probabilities of transformers for a text and a pair, in TEI's form, at its root, and in vectord's form."""
    import torch

    logits = logits_of(classifier, [("birds sing", "in trees")])
    expected = torch.softmax(torch.tensor(logits), dim=1)[0].tolist()
    async with served(classifier) as ask:
        flat = await ask("/predict", inputs=["birds sing", "in trees"])
        root = await ask("/", inputs=["birds sing", "in trees"])
        nested = await ask("/predict", inputs=[["birds sing", "in trees"], ["birds"]], raw_scores=True)
        ours = await ask("/vectord/classify", inputs=[["birds sing", "in trees"], "birds"])
        info = await ask("/info", "GET")
        refused = await ask("/embed", inputs="birds")
    probabilities = {prediction["label"]: prediction["score"] for prediction in flat.json}
    np.testing.assert_allclose([probabilities[label] for label in LABELS], expected, atol=2e-4)
    assert root.json == flat.json == sorted(flat.json, key=lambda prediction: -prediction["score"])
    raw = {prediction["label"]: prediction["score"] for prediction in nested.json[0]}
    np.testing.assert_allclose([raw[label] for label in LABELS], logits[0], atol=2e-4)
    assert len(nested.json) == 2
    assert ours.json["data"][0]["labels"] == [
        {"label": prediction["label"], "score": pytest.approx(prediction["score"], abs=1e-5)}
        for prediction in flat.json
    ]
    assert ours.headers["x-vectord-score-kind"] == ours.json["score_kind"] == "probability"
    assert info.json["model_type"]["classifier"]["label2id"] == {"sad": 0, "glad": 1, "mad": 2}
    assert (refused.status, refused.json["error_type"]) == (424, "Backend")


async def test_weights_of_a_splade(tmp_path: Path) -> None:
    """The weights of sentence-transformers, in TEI's form, at its root, and in vectord's form."""
    from sentence_transformers import SparseEncoder

    folder = write_splade(tmp_path)
    expected = SparseEncoder(str(folder), device="cpu").encode(PASSAGES, convert_to_tensor=True).to_dense().numpy()
    async with served(folder) as ask:
        tei = await ask("/embed_sparse", inputs=PASSAGES)
        root = await ask("/", inputs=PASSAGES)
        ours = await ask("/vectord/embed", inputs=PASSAGES, outputs=["sparse"])
    got = np.zeros_like(expected)
    for row, entries in zip(got, tei.json, strict=True):
        for entry in entries:
            row[entry["index"]] = entry["value"]
    np.testing.assert_allclose(got, expected, atol=2e-4)
    assert root.json == tei.json
    assert [item["sparse"] for item in ours.json["data"]] == [
        {"indices": [entry["index"] for entry in entries], "values": [entry["value"] for entry in entries]}
        for entries in tei.json
    ]
    assert "dense" not in ours.json["data"][0]


async def test_every_kind_of_vector_from_one_model_and_from_two(tmp_path: Path, embedder: Path) -> None:
    """BGE-M3 makes three kinds at once. A composite takes each from one model, and counts the tokens of both."""
    m3 = write_bge_m3(tmp_path / "m3")
    composite = f"both=dense:{embedder.name}+sparse:m3"
    asked = {"inputs": ["birds sing", "the lazy dog"], "outputs": ["dense", "sparse", "colbert"]}
    async with served(m3, embedder, composites=(composite,)) as ask:
        one = await ask("/vectord/embed", **asked, precisions=["float", "int8", "ubinary"])
        two = await ask("/vectord/embed", inputs=asked["inputs"], model="both", outputs=["dense", "sparse"])
        lone = await ask("/vectord/embed", inputs=asked["inputs"], model="m3", outputs=["sparse"])
        dense = await ask("/vectord/embed", inputs=asked["inputs"], model=embedder.name)
        scores = await ask("/vectord/rerank", query="birds", passages=asked["inputs"], model="m3", method="weighted")
        kinds = await ask("/vectord/models", "GET")
    (first, _) = one.json["data"]
    assert set(first) == {"index", "dense", "sparse", "colbert"}
    assert [len(first["dense"][precision]) for precision in ("float", "int8", "ubinary")] == [32, 32, 4]
    np.testing.assert_allclose(np.linalg.norm(first["colbert"], axis=1), 1, atol=1e-5)
    assert two.json["sources"] == {"dense": embedder.name, "sparse": "m3"}
    assert [item["sparse"] for item in two.json["data"]] == [item["sparse"] for item in lone.json["data"]]
    np.testing.assert_allclose(
        [item["dense"] for item in two.json["data"]], [item["dense"] for item in dense.json["data"]], atol=1e-5
    )
    seen = [int(reply.headers["x-vectord-tokens-seen"]) for reply in (two, lone, dense)]
    assert seen[0] == seen[1] + seen[2] == two.json["usage"]["tokens"]
    assert scores.json["score_kind"] == scores.headers["x-vectord-score-kind"] == "weighted"
    assert [model["name"] for model in kinds.json["models"]] == ["m3", embedder.name, "both"]
    assert kinds.json["models"][0]["outputs"] == ["colbert", "dense", "sparse", "tokens"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/dialects/openai/v1/embeddings", "input"),
        ("/dialects/tei/embed", "inputs"),
        ("/dialects/tei/v1/embeddings", "input"),
        ("/dialects/vllm/v1/embeddings", "input"),
        ("/dialects/vllm/pooling", "input"),
        ("/dialects/llamacpp/embedding", "content"),
        ("/dialects/embedding_server/embed", "inputs"),
        ("/dialects/vllm/classify", "input"),
    ],
)
async def test_ids_of_another_vocabulary_are_reported(
    embedder: Path, classifier: Path, path: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where ids are read as the model's own, a header lists the inputs without its special tokens, and the log names
    the route once per client. Texts and the model's own sequences are not listed."""
    folder = classifier if "classify" in path else embedder
    dialects = ("openai", "tei", "vllm", "llamacpp", "embedding_server", "vectord")
    async with served(folder, dialects=dialects, own_token_ids=True) as ask:
        own = [token["id"] for token in (await ask("/dialects/tei/tokenize", inputs="a lazy dog")).json[0]]
        fine = [await ask(path, **{field: value}) for value in ("a lazy dog", [own])]
        replies = [await ask(path, **{field: [own, own[1:-1], own[1:]]}) for _ in range(2)]
    assert {reply.status for reply in (*fine, *replies)} == {200}
    assert not [reply for reply in fine if "x-vectord-foreign-ids" in reply.headers]
    assert [reply.headers["x-vectord-foreign-ids"] for reply in replies] == ["1,2", "1,2"]
    (line,) = [record.getMessage() for record in caplog.records if "token ids" in record.getMessage()]
    assert folder.name in line
    assert path.split("/", 3)[3] in line


# --- vLLM's forms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_late_chunks_are_means_of_the_last_layers_tokens(tmp_path: Path, size: int) -> None:
    """Special tokens count, as in vLLM; characters are those of the tokenizer's offsets."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = write_sentence_bert(tmp_path / "dense")
    text = "a lazy dog, birds sing in green trees"
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0].numpy()
    async with served(folder, dialects=("vllm",)) as ask:
        (item,) = (await ask("/v1/embeddings", input=text, late_chunking_params={"chunk_size": size})).json["data"]
        too_long = await ask("/v1/embeddings", input="birds " * 600, late_chunking_params={"chunk_size": size})
    starts = range(0, len(offsets), size)
    means = np.array([states[start : start + size].mean(axis=0) for start in starts])
    np.testing.assert_allclose(item["embedding"], means / np.linalg.norm(means, axis=1, keepdims=True), atol=2e-6)
    ranges = item["late_chunking"]["chunks"]
    assert [one["token_range"] for one in ranges] == [[start, min(start + size, len(offsets))] for start in starts]
    for one in ranges:
        own = [place for place in offsets[slice(*one["token_range"])] if place[0] < place[1]]
        assert one["char_range"] == ([own[0][0], own[-1][1]] if own else None)
    assert (too_long.status, too_long.json["error"]["param"]) == (400, "input")


async def test_each_conversation_has_the_vector_of_its_text(tmp_path: Path) -> None:
    """Written by the chat template. An error names the conversation."""
    folder = write_sentence_bert(tmp_path / "dense")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    texts = ["a lazy dog", "birds sing", "birds " * 600]
    conversations = [[{"role": "user", "content": text}] for text in texts]
    async with served(folder, dialects=("vllm",)) as ask:
        expected = (await ask("/v1/embeddings", input=texts[:2], add_special_tokens=False)).json["data"]
        for field in ("messages", "input"):
            answer = (await ask("/v1/embeddings", **{field: conversations[:2]})).json
            assert [item["embedding"] for item in answer["data"]] == [item["embedding"] for item in expected]
            refused = await ask("/v1/embeddings", **{field: conversations})
            assert refused.status == 400 and f"`{field}[2]`" in refused.json["error"]["message"]
    async with served(folder, dialects=("openai", "vllm")) as ask:  # by the keys, OpenAI's API answers
        answer = await ask("/v1/embeddings", input=conversations[0])
        assert answer.json["data"][0]["embedding"] == expected[0]["embedding"]
        refused = await ask("/v1/embeddings", input=conversations[0], prompt="query: ")
        assert refused.status == 400 and "`prompt` is for texts" in refused.json["error"]["message"]
