"""jina-reranker-v3 and v3.5 through the whole server: the scores and order of their own code on every rerank route."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tests.checkpoints.reading import refusal
from tests.compute.networks.tiny_decoders import write
from tests.compute.networks.tiny_encoders import change_config
from tests.models import WIDTH
from tests.products.test_real_models import Ask, served
from tests.text.makers import byte_level
from tests.text.test_listwise import ASKED, PASSAGE, SPECIALS, own_parts, own_prompt

from vectord import Embedder

sharing = pytest.mark.asyncio(loop_scope="module")  # the server

QUERY = "what does the fox do?"
PASSAGES = ["the fox jumps over a lazy dog", "many small birds sing", f"a {PASSAGE}green tree", "", "the fox sleeps"]
MAX_TOKENS = 4096  # so that the longest passage is that of the model's own code, which half of it is
WINDOW = 60  # of the layers of v3.5 that slide, shorter than the list


def write_reranker(folder: Path, *, slides: bool) -> Path:
    """The files of v3's repository, or with layers that slide of v3.5's."""
    tokenizer = byte_level(*SPECIALS)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    window = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": kinds} if slides else {}
    size = tokenizer.get_vocab_size()
    write("qwen3", folder, vocab_size=size, pad_token_id=0, max_position_embeddings=MAX_TOKENS, **window)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": MAX_TOKENS}))
    shutil.copytree(folder, folder.with_name("plain"))
    _add_projector(folder)
    return change_config(
        folder, architectures=["JinaForRanking"], auto_map={"AutoModel": "modeling.JinaForRanking"}, use_cache=False
    )


def _add_projector(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(1)
    shapes = {"projector.0.weight": (WIDTH // 2, WIDTH), "projector.2.weight": (24, WIDTH // 2)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    body = {f"model.{name}": weight for name, weight in load_file(folder / "model.safetensors").items()}
    save_file({**body, **made}, folder / "model.safetensors", {"format": "pt"})


def own_scores(folder: Path, query: str, passages: Sequence[str], instruction: str = "") -> np.ndarray:
    """(N,) by the steps of the model's own `rerank`, over transformers' Qwen3 in float64."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModel, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModel.from_pretrained(folder.with_name("plain"), dtype=torch.float64).eval()
    weights = load_file(folder / "model.safetensors")
    first, second = (weights[f"projector.{i}.weight"].double() for i in (0, 2))
    of_passage, of_query = tokenizer.convert_tokens_to_ids([PASSAGE, ASKED])
    query, *passages = (text.replace(ASKED, "").replace(PASSAGE, "") for text in (query, *passages))
    lengths = [len(tokenizer(passage)["input_ids"]) for passage in passages]
    states, queries, shares, start = [], [], [], 0
    for count in own_parts(lengths, len(tokenizer(query)["input_ids"]), MAX_TOKENS, MAX_TOKENS // 2):
        prompt = own_prompt(query, passages[start : start + count], instruction)
        ids = torch.tensor([tokenizer(f"{prompt}\n</query><|im_end|>\n<|im_start|>assistant\n")["input_ids"]])
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0]
        projected = torch.relu(hidden @ first.T) @ second.T
        own, asked = projected[ids[0] == of_passage], projected[ids[0] == of_query]
        assert (len(own), len(asked)) == (count, 1)
        shares.append((1 + torch.cosine_similarity(own, asked)).max().item() / 2)
        states.append(own)
        queries.append(asked)
        start += count
    mean = np.average(torch.cat(queries).numpy(), axis=0, weights=shares)
    return torch.cosine_similarity(torch.cat(states), torch.tensor(mean)[None]).numpy()


@pytest.fixture(scope="module", params=[False, True], ids=["v3", "v3.5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("lists") / "reranker", slides=request.param)


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    return own_scores(folder, QUERY, PASSAGES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ask(folder: Path) -> AsyncIterator[Ask]:
    names = ("tei", "cohere", "voyage", "jina", "vllm", "infinity", "llamacpp", "nvidia", "mixedbread", "weaviate")
    names += ("semantic_explorer", "smart_embedder", "simple_inference_server", "vectord")
    async with served(folder, dialects=names) as ask:
        yield ask


DOCUMENTS = {"query": QUERY, "documents": PASSAGES}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere": ("/v2/rerank", DOCUMENTS),
    "infinity": ("/rerank", DOCUMENTS),
    "jina": ("/v1/rerank", DOCUMENTS),
    "llamacpp": ("/v1/reranking", DOCUMENTS),
    "mixedbread": ("/v1/reranking", {"query": QUERY, "input": PASSAGES}),
    "nvidia": ("/v1/ranking", {"query": {"text": QUERY}, "passages": [{"text": text} for text in PASSAGES]}),
    "semantic_explorer": ("/api/rerank", DOCUMENTS),
    "simple_inference_server": ("/v1/rerank", DOCUMENTS),
    "smart_embedder": ("/rerank", {"query": QUERY, "passages": PASSAGES}),
    "tei": ("/rerank", {"query": QUERY, "texts": PASSAGES}),
    "vllm": ("/rerank", DOCUMENTS),
    "voyage": ("/v1/rerank", DOCUMENTS),
    "weaviate": ("/rerank", DOCUMENTS),
    "vectord": ("/rerank", {"query": QUERY, "passages": PASSAGES}),
}


@sharing
async def test_every_route_has_the_models_own_scores_and_order(ask: Ask, expected: np.ndarray) -> None:
    """All requests at once, so that a batch has lists of several. The tokens of a list are counted once."""
    paths = [path if name == "vectord" else f"/dialects/{name}{path}" for name, (path, _) in ROUTES.items()]
    replies = await asyncio.gather(*(ask(path, **body) for path, (_, body) in zip(paths, ROUTES.values(), strict=True)))
    for path, reply in zip(paths, replies, strict=True):
        assert (reply.status, reply.headers["x-vectord-score-kind"]) == (200, "cosine"), reply.body
        found = _scores(reply.json)
        np.testing.assert_allclose([score for _, score in sorted(found.items())], expected, atol=2e-5, err_msg=path)
        assert "weaviate" in path or [*found] == np.argsort(-expected).tolist()
    assert replies[0].json["usage"]["total_tokens"] == _tokens(PASSAGES)


def _scores(body: Any) -> dict[int, float]:
    """The scores of any of these products by the index of the passage, in the order of the response."""
    if isinstance(body, dict):
        body = next(body[key] for key in ("results", "data", "rankings", "scores") if key in body)
    names = ("relevance_score", "score", "logit")
    return {one.get("index", i): next(one[name] for name in names if name in one) for i, one in enumerate(body)}


def _tokens(passages: Sequence[str]) -> int:
    prompt = own_prompt(QUERY, [passage.replace(PASSAGE, "") for passage in passages])
    return len(byte_level(*SPECIALS).encode(prompt).ids)


@sharing
async def test_a_list_longer_than_the_models_text_has_its_own_scores(ask: Ask, folder: Path) -> None:
    """Its parts share the mean of their queries' states, and displace no vectors from the cache."""
    passages = [f"{text} " * 80 for text in PASSAGES for _ in range(3)]
    reply = await ask("/vectord/rerank", query=QUERY, passages=passages)
    found = _scores(reply.json)
    np.testing.assert_allclose(
        [score for _, score in sorted(found.items())], own_scores(folder, QUERY, passages), atol=2e-5
    )
    assert reply.json["usage"]["tokens"] > MAX_TOKENS
    metrics = await ask("/metrics", "GET")
    assert "\nvectord_cache_texts 0.0\n" in metrics.body.decode()


@sharing
async def test_an_instruction_is_read(ask: Ask, folder: Path) -> None:
    """And pairs of one query are lists of one passage, as in vLLM's /score with as many queries as documents."""
    instructed = await ask("/dialects/vllm/rerank", query=QUERY, documents=PASSAGES, instruction="Find a fox")
    expected = own_scores(folder, QUERY, PASSAGES, "Find a fox")
    found = [score for _, score in sorted(_scores(instructed.json).items())]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    pairs = await ask("/dialects/vllm/score", text_1=[QUERY, "trees"], text_2=PASSAGES[:2])
    alone = [own_scores(folder, *pair)[0] for pair in ((QUERY, PASSAGES[:1]), ("trees", PASSAGES[1:2]))]
    np.testing.assert_allclose([item["score"] for item in pairs.json["data"]], alone, atol=2e-5)


@sharing
async def test_a_reranker_of_lists_neither_embeds_nor_classifies(ask: Ask) -> None:
    """Its states at the markers mean nothing by themselves."""
    refused = [await ask("/vectord/embed", inputs=["a"]), await ask("/vectord/classify", inputs=["a"])]
    assert [reply.status for reply in refused] == [400, 400], [reply.body for reply in refused]
    too_long = await ask("/vectord/rerank", query=QUERY, passages=["a", " fox" * 3000], truncate=False)
    assert too_long.status == 400
    assert all(word in too_long.body.decode() for word in ("passages[1]", "2048", "3000"))


def test_the_library_has_the_same_scores(folder: Path, expected: np.ndarray) -> None:
    """In the order of the model's own code."""
    with Embedder(str(folder), dtype="float32", offline=True) as embedder:
        ranked = embedder.rerank(QUERY, PASSAGES)
    assert [one.index for one in ranked] == np.argsort(-expected).tolist()
    np.testing.assert_allclose([one.score for one in ranked], sorted(expected, reverse=True), atol=2e-5)


def test_a_reranker_of_lists_needs_its_projector(folder: Path, tmp_path: Path) -> None:
    """Which conversions for other programs have in a file of their own."""
    other = shutil.copytree(folder, tmp_path / "model")
    shutil.copy(folder.with_name("plain") / "model.safetensors", other)
    assert "projector.0.weight" in refusal(other)
