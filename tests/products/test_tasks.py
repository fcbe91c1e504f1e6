"""The tasks of jina-embeddings-v3 and v5 through the whole server: each API's own field chooses adapter and prompt."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from tests.checkpoints.reading import refusal
from tests.compute.networks.jina_tasks import INSTRUCTIONS, task_states, write_jina_tasks
from tests.compute.networks.test_adapters import ATTENTION, merged_states, write_peft
from tests.compute.networks.tiny_decoders import reference, write
from tests.compute.networks.tiny_encoders import CASES as CASES_OF_ENCODERS
from tests.compute.networks.tiny_encoders import change_config
from tests.models import write_bert
from tests.products.test_real_models import Ask, served

sharing = pytest.mark.asyncio(loop_scope="module")  # the server

TEXT = "many small birds sing"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of Jina's repository, with a tiny network."""
    folder = tmp_path_factory.mktemp("jina") / "tiny"
    write_bert(folder)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    write_jina_tasks(folder, vocab_size=vocab_size, matryoshka_dimensions=[8, 16, 32], truncate_dim=None)
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]},
            {"idx": 1, "name": "pooler", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "normalizer", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": INSTRUCTIONS, "default_prompt_name": None},
    }
    for name, value in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, np.ndarray]:
    """The vector of TEXT under each task, and under none, by transformers over merged weights."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = {}
    for task in (None, *INSTRUCTIONS):
        ids = tokenizer.encode(("" if task is None else INSTRUCTIONS[task]) + TEXT).ids
        mean = task_states(folder, [ids], task, tmp_path_factory.mktemp("merged")).mean(axis=0)
        found[task] = mean / np.linalg.norm(mean)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ask(folder: Path) -> AsyncIterator[Ask]:
    async with served(folder, dialects=("jina", "openai", "cohere", "tei", "vectord")) as ask:
        yield ask


JINA, OPENAI, COHERE = "/dialects/jina/v1/embeddings", "/dialects/openai/v1/embeddings", "/dialects/cohere/v2/embed"
CASES: list[tuple[str, dict[str, Any], str | None]] = [
    *((JINA, {"input": [TEXT], "task": task}, task) for task in INSTRUCTIONS),
    (JINA, {"input": [TEXT]}, None),
    ("/v1/embeddings", {"input": [TEXT], "task": "text-matching"}, "text-matching"),
    (OPENAI, {"input": [TEXT], "input_type": "query"}, "retrieval.query"),
    (OPENAI, {"input": [TEXT], "prompt_name": "retrieval.passage"}, "retrieval.passage"),
    (OPENAI, {"input": [TEXT]}, None),
    *(
        (COHERE, {"texts": [TEXT], "input_type": kind, "embedding_types": ["float"]}, task)
        for kind, task in {
            "search_query": "retrieval.query",
            "search_document": "retrieval.passage",
            "classification": "classification",
            "clustering": "separation",
        }.items()
    ),
    (OPENAI, {"input": [TEXT], "model": "tiny:separation"}, "separation"),
    ("/dialects/tei/embed", {"inputs": [TEXT], "prompt_name": "retrieval.query"}, "retrieval.query"),
    ("/vectord/embed", {"inputs": [TEXT], "kind": "document"}, "retrieval.passage"),
]


@sharing
async def test_each_field_chooses_its_adapter(ask: Ask, expected: dict[str | None, np.ndarray]) -> None:
    """All requests run at once, so that batches mix the tasks, and once more from the cache."""
    for _ in range(2):
        replies = await asyncio.gather(*(ask(path, **body) for path, body, _ in CASES))
        for (path, body, task), reply in zip(CASES, replies, strict=True):
            assert reply.status == 200, reply.body
            np.testing.assert_allclose(_vector(reply.json), expected[task], atol=1e-4, err_msg=f"{path} {body}")


@sharing
async def test_an_unknown_task_is_refused(ask: Ask) -> None:
    """The error lists the model's tasks."""
    reply = await ask(JINA, input=[TEXT], task="code.query")
    assert reply.status == 422
    assert "separation" in str(reply.json)


@sharing
async def test_a_task_that_is_not_the_adapter_in_the_model_s_name_is_refused(ask: Ask) -> None:
    """And one that is the same is not."""
    both = [
        await ask(JINA, input=[TEXT], model="tiny:separation", task=task) for task in ("separation", "text-matching")
    ]
    assert [reply.status for reply in both] == [200, 422]
    assert "task" in str(both[1].json)


async def test_an_adapter_of_peft_is_chosen_by_the_model_s_name(tmp_path: Path) -> None:
    """The vector of merged weights, next to the model's own; a name without such an adapter is no model."""
    from tokenizers import Tokenizer

    folder = write_bert(tmp_path / "plain")
    adapter = write_peft(tmp_path / "adapter", folder, ATTENTION, seed=1)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    own = CASES_OF_ENCODERS["bert"].reference(folder, [ids])
    merged = merged_states(folder, adapter, tmp_path / "merged", ids)
    async with served(folder, lora=(f"legal={adapter}",)) as ask:
        for name, states in {"plain": own, "plain:legal": merged}.items():
            mean = states.mean(axis=0)
            got = _vector((await ask(OPENAI, model=name, input=[TEXT])).json)
            np.testing.assert_allclose(got, mean / np.linalg.norm(mean), atol=1e-4)
        assert (await ask(OPENAI, model="plain:other", input=[TEXT])).status == 404


# --- jina-embeddings-v5-text --------------------------------------------------------------------------------------

V5_TASKS = ("retrieval", "text-matching", "clustering", "classification")
V5_LAYERS = ("layers.0.self_attn.q_proj", "layers.1.self_attn.v_proj", "layers.2.mlp.down_proj")
Expected = Callable[[str, str], np.ndarray]  # by task and prompt


def write_v5(folder: Path, model_type: str) -> Path:
    """The files of the small model (qwen3) or of nano (eurobert), as their repositories have them."""
    vocab_size = json.loads((write_bert(folder) / "config.json").read_text())["vocab_size"]
    write(model_type, folder, vocab_size=vocab_size, pad_token_id=0)
    for seed, task in enumerate(V5_TASKS):
        write_peft(folder / "adapters" / task, folder, V5_LAYERS, seed=seed)
    shutil.copytree(folder, folder.with_name("plain"))
    change_config(
        folder,
        model_type="jina_embeddings_v5",
        architectures=["JinaEmbeddingsV5Model"],
        auto_map={"AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"},
        task_names=V5_TASKS,
        is_decoder=None if model_type == "qwen3" else False,
    )
    module = {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}
    (folder / "modules.json").write_text(json.dumps([{**module, "kwargs": ["task", "truncate_dim"]}]))
    prompts = {"query": "Query: ", "document": "Document: "}
    sentence = {"prompts": prompts, "default_prompt_name": "document", "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(sentence))
    return folder


@pytest.fixture(scope="module", params=["qwen3", "eurobert"])
def v5(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    """A model, and the vector of TEXT as its own `encode` computes it: the state of the last token, of length 1, with
    the task's adapter in the weights."""
    from tokenizers import Tokenizer

    folder = write_v5(tmp_path_factory.mktemp("v5") / "v5", request.param)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def expected(task: str, prompt: str) -> np.ndarray:
        ids, scratch = tokenizer.encode(prompt + TEXT).ids, tmp_path_factory.mktemp("merged") / "model"
        plain = folder.with_name("plain")
        last = merged_states(plain, plain / "adapters" / task, scratch, ids, reference)[-1]
        return np.asarray(last / np.linalg.norm(last))

    return folder, expected


V5_CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (JINA, {"input": [TEXT], "task": "retrieval.query"}, "retrieval", "Query: "),
    (JINA, {"input": [TEXT], "task": "retrieval.passage"}, "retrieval", "Document: "),
    (JINA, {"input": [TEXT], "task": "text-matching", "prompt_name": "query"}, "text-matching", "Query: "),
    *((JINA, {"input": [TEXT], "task": task}, task, "Document: ") for task in V5_TASKS),
    (OPENAI, {"input": [TEXT]}, "retrieval", "Document: "),
    (OPENAI, {"input": [TEXT], "input_type": "query"}, "retrieval", "Query: "),
    (OPENAI, {"input": [TEXT], "model": "v5:text-matching"}, "text-matching", "Document: "),
    ("/dialects/tei/embed", {"inputs": [TEXT], "prompt_name": "text-matching"}, "text-matching", "Document: "),
    ("/dialects/tei/embed", {"inputs": [TEXT], "prompt_name": "query"}, "retrieval", "Query: "),
    ("/vectord/embed", {"inputs": [TEXT], "kind": "clustering"}, "clustering", "Document: "),
    (
        COHERE,
        {"texts": [TEXT], "input_type": "classification", "embedding_types": ["float"]},
        "classification",
        "Document: ",
    ),
]


async def test_each_field_chooses_a_task_of_v5(v5: tuple[Path, Expected]) -> None:
    """All at once, so that batches mix the tasks. A request without a task gets the adapter of retrieval, and one
    without a prompt that of documents."""
    folder, expected = v5
    async with served(folder, dialects=("jina", "openai", "cohere", "tei", "vectord")) as ask:
        replies = await asyncio.gather(*(ask(path, **body) for path, body, _, _ in V5_CASES))
        unknown = await ask(JINA, input=[TEXT], task="code.query")
    for (path, body, task, prompt), reply in zip(V5_CASES, replies, strict=True):
        assert reply.status == 200, reply.body
        np.testing.assert_allclose(_vector(reply.json), expected(task, prompt), atol=1e-4, err_msg=f"{path} {body}")
    assert (unknown.status, "text-matching" in str(unknown.json)) == (422, True)


def test_a_task_of_v5_without_an_adapter_is_refused(v5: tuple[Path, Expected], tmp_path: Path) -> None:
    """Its texts would get the vectors of the network alone."""
    folder = shutil.copytree(v5[0], tmp_path / "model")
    shutil.rmtree(folder / "adapters" / "clustering")
    assert "task_names has 'clustering'" in refusal(folder)


def _vector(body: Any) -> list[float]:
    """The only vector in the answer of any of these products."""
    while not isinstance(body, list) or isinstance(body[0], list | dict):
        if isinstance(body, list):
            body = body[0]
        else:
            body = next(body[key] for key in ("data", "embeddings", "embedding", "float", "dense") if key in body)
    return body
