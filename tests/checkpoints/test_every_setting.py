"""Each setting of the files of each kind of model, changed alone, gives its library's numbers or is refused by name.

Random tiny models of sentence-transformers. The keys are those that their classes save, so a later version's
are covered too, and those of earlier versions. Where the library raises an error, only a refusal passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pytest
import torch
from model2vec import StaticModel
from model2vec.types import StaticModelConfig
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tests.checkpoints.kinds.test_colbert import save_multi_vector_encoder
from tests.checkpoints.kinds.test_static import tokenizer_of, vectors, write_table
from tests.checkpoints.reading import spec_of
from tests.checkpoints.test_router import write_router
from tests.checkpoints.test_two_networks import write_two
from tests.models import WIDTH, write_bert, write_sentence_bert
from tests.reference.ragged import unpack
from tests.reference.reference_models import write_colbert, write_qwen3_reranker
from tests.reference.references import run_script
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    PreTrainedModel,
    TextClassificationPipeline,
)

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.spec import ModelSpec
from vectord.compute.backends import static
from vectord.compute.backends.base import Answers, Backend, BackendOptions, TokenBatch
from vectord.compute.networks.network import Network
from vectord.compute.ops.numpy import NumpyOps, pack
from vectord.engine.operations.multivectors import pool_tokens
from vectord.engine.operations.postprocess import activate
from vectord.engine.queue.batch import IN_ROWS, Item, unscheduled_batch
from vectord.engine.queue.execution import Execution
from vectord.errors import ConfigError, InvalidRequest, StartError
from vectord.schema import AnswerKind, TextOptions
from vectord.text.sequence import ReadRequest, TokenSequence
from vectord.text.tokenizer import TextEncoder

pytestmark = pytest.mark.usefixtures("one_thread")
VALUES: tuple[Any, ...] = (None, True, False, 0, 7, 0.5, "x", ["x"], {"a": 1})
EDGES: tuple[Any, ...] = (-1, 1, 10**30, float("nan"), "", [], {})  # each place gets one of them
TEXTS = ["The quick brown fox jumps over the lazy dog", "a", "Ünïcode [CLS] WORDS [cls] and more of every kind " * 4]
NAME = "me/qwen3-reranker"  # of the language model, whose question is known by it
QUERY, *PASSAGES = ["fox", "lazy dogs, and a bird!", "small birds sing"]

# Their refusals name the tensor or the widths that do not fit, the missing file, or the tokenizer without room or
# without the token.
SHAPES = {
    *("in_features", "out_features", "max_seq_length", "path", "num_labels", "id2label", "type", "structure"),
    *("classifier_bias", "norm_bias", "use_residual", "parameters", "pooling_mode", "truncation"),
    *("document_length", "document_prefix", "query_length", "query_prefix"),
}

# They have no effect, so their form does not matter, though the libraries check it.
NO_EFFECT = {
    *("__version__", "classifier_dropout", "embedding_dimension", "idx", "kwargs", "requirements"),
    *("similarity_fn_name", "word_embedding_dimension"),
}

Arrays = Sequence[np.ndarray]
Place = tuple[str | int, ...]  # of a value in a JSON file: keys of objects and indexes of lists


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the settings of its files."""

    write: Callable[[Path], Path]
    answer: Callable[[Path], Arrays]
    reference: Callable[[Path], Arrays]
    files: Mapping[str, Sequence[str]]  # further keys of each; those that the file has are added, except config.json's
    second: Callable[[Path], Arrays] | None = None  # another library that reads the folder; its numbers pass too


# --- vectord --------------------------------------------------------------------------------------------------


class NumpyBackend:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.encoder = TextEncoder(spec)
        self._static = static.load(spec, BackendOptions()) if spec.static else None
        self._network = None if spec.static else Network(spec, open_checkpoint(spec.weights), NumpyOps())

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        if self._network is None:
            assert self._static is not None
            return self._static.forward(batch, stream)
        return {name: np.asarray(rows) for name, rows in self._network(pack(batch.texts), batch.outputs).items()}

    def answers(
        self, output: AnswerKind, inputs: Sequence[Any], query: str | None = None, **options: Any
    ) -> list[tuple[TokenSequence, Any]]:
        if ("splade" if output == "sparse" else output) not in self.spec.outputs:  # the engine refuses such a request
            raise ConfigError(f"{output}: a model of another kind by config.json and modules.json")
        read = ReadRequest(inputs=inputs, query=query, options=TextOptions(**options), truncate=True)
        texts = self.encoder.read(read)
        places = np.arange(len(texts), dtype=np.int32)[:, None]
        items = [Item(texts, frozenset({output}), "", "bulk", places=place) for place in places]
        execution = Execution(cast(Backend, self), self.spec, self.encoder.special_ids)
        found = []
        for one, (_, answers) in zip(texts, execution.run(unscheduled_batch(items), 0), strict=True):
            if isinstance(answers, Exception):
                raise answers
            found.append((one, answers[output] if output in IN_ROWS else answers[output][0]))
        return found


def dense_rows(spec: ModelSpec, texts: Sequence[str], **options: Any) -> np.ndarray:
    rows = np.concatenate([row for _, row in NumpyBackend(spec).answers("dense", texts, **options)])
    return unit(rows[:, : spec.truncate_dim])


def dense_answer(folder: Path) -> Arrays:
    return dense_rows(spec_of(folder), TEXTS)


def two_answer(folder: Path) -> Arrays:
    spec = spec_of(folder)
    assert spec.query is not None
    return [*dense_rows(spec.query, TEXTS, kind="query"), *dense_rows(spec, TEXTS, kind="document")]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def sparse_answer(folder: Path) -> Arrays:
    spec = spec_of(folder)
    backend = NumpyBackend(spec)
    rows = np.zeros((2 * len(TEXTS), spec.config["vocab_size"]), np.float32)
    for row, (_, one) in zip(rows, backend.answers("sparse", TEXTS, kind="document"), strict=False):
        row[one.indices] = one.values
    if (weights := backend.encoder.query_weights) is None:
        return rows[: len(TEXTS)]
    read = ReadRequest(inputs=TEXTS, options=TextOptions(kind="query", add_special_tokens=False), truncate=True)
    for row, one in zip(rows[len(TEXTS) :], backend.encoder.read(read), strict=True):
        row[one.ids] = weights[one.ids]
    return rows


KINDS = [kind for kind in ("query", "document") for _ in TEXTS]  # of the answers below


def tokens_answer(folder: Path) -> Arrays:
    backend = NumpyBackend(spec_of(folder))
    return [
        rows if one.rows is None else rows[one.rows]
        for kind in ("query", "document")
        for one, rows in backend.answers("colbert", TEXTS, kind=kind)
    ]


def scores_answer(folder: Path) -> Arrays:
    """The scores, and the labels in their order."""
    spec = spec_of(folder, name=NAME)
    logits = np.stack([row for _, row in NumpyBackend(spec).answers("scores", PASSAGES, QUERY)])[:, 0]
    if spec.yes_no is not None and logits.shape[1] == 2:
        logits = logits[:, 1:] - logits[:, :1]
    return [activate(logits, spec.score_activation)[0], np.array(spec.labels)]


# --- the libraries --------------------------------------------------------------------------------------------


def write_dense(folder: Path) -> Path:
    """With the modules and the prompt that each of the files can affect."""
    saved = write_sentence_bert(folder, dense=(8,), normalize=True)
    path = saved / "config_sentence_transformers.json"
    prompts = {"prompts": {"query": "search: "}, "default_prompt_name": "query"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **prompts}))
    return saved


def dense_reference(folder: Path) -> Arrays:
    return unit(SentenceTransformer(str(folder), device="cpu").encode(TEXTS))


def two_reference(folder: Path) -> Arrays:
    model = SentenceTransformer(str(folder), device="cpu")
    return [*unit(model.encode_query(TEXTS)), *unit(model.encode_document(TEXTS))]


def write_static(folder: Path) -> Path:
    torch.manual_seed(0)
    source = write_bert(folder / "source")
    table = StaticEmbedding(Tokenizer.from_file(str(source / "tokenizer.json")), embedding_dim=8)
    return save(SentenceTransformer(modules=[table, Normalize()], device="cpu"), folder)


WORDS = ["alpha", "beta unknown alpha <unk> <pad>", "gamma gamma delta eta", "eta beta " * 40, "q " * 9 + "beta " * 600]
TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}


def truncated(folder: Path) -> Path:
    path = next(folder.rglob("tokenizer.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncation": TRUNCATION}))
    return folder


def write_embedding(folder: Path) -> Path:
    rows = np.random.default_rng(7).normal(size=(7, 8)).astype(np.float32)
    table = StaticEmbedding(tokenizer_of("WordLevel"), embedding_weights=rows)
    return save(SentenceTransformer(modules=[table, Normalize()], device="cpu"), folder)


def directions(rows: np.ndarray) -> Arrays:
    """A text without known words stays zero."""
    rows = rows.astype(np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def table_answer(folder: Path) -> Arrays:
    return directions(vectors(folder, WORDS))


def model2vec_reference(folder: Path) -> Arrays:
    return directions(StaticModel.from_pretrained(folder).encode(WORDS))


def embedding_reference(folder: Path) -> Arrays:
    return directions(SentenceTransformer(str(folder), device="cpu").encode(WORDS))


def write_network(folder: Path, kind: type[PreTrainedModel], config: Any) -> Path:
    """A network with a head, and the tokenizer of tests/models.py."""
    source = write_bert(folder)
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(0)
    model = kind(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    return source


def write_splade(folder: Path) -> Path:
    write_bert(folder / "source")
    source = write_network(folder / "source", BertForMaskedLM, BertConfig.from_pretrained(folder / "source"))
    modules = [Transformer(str(source), transformer_task="fill-mask"), SpladePooling()]
    return save(SparseEncoder(modules=modules, device="cpu"), folder)


def sparse_reference(folder: Path) -> Arrays:
    model = SparseEncoder(str(folder), device="cpu")
    documents = model.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    if "Router" not in (folder / "modules.json").read_text():
        return documents
    return np.concatenate([documents, model.encode_query(TEXTS, convert_to_sparse_tensor=False).numpy()])


def write_multi_vector(folder: Path) -> Path:
    expansion = {"strategy": "fixed", "length": 24, "attend": True, "token": "[MASK]"}
    return save_multi_vector_encoder(folder, query_expansion=expansion, document_length=60)


def write_pooled(folder: Path) -> Path:
    return save_multi_vector_encoder(folder, pooling={"pool_factor": 2.0, "tasks": ["query", "document"]})


def spread_rows() -> Arrays:
    """Rows far apart, for each of KINDS: of the tiny model's, which are nearly equal, rounding decides the clusters."""
    rows = np.random.default_rng(0).normal(size=(len(KINDS), 24, 16)).astype(np.float32)
    return [*(rows / np.linalg.norm(rows, axis=2, keepdims=True))]


def pooled_answer(folder: Path) -> Arrays:
    """As the engine pools the rows."""
    tokens_answer(folder)  # raises for what is refused
    pooling = spec_of(folder).colbert.token_pooling
    pool = partial(pool_tokens, factor=pooling.factor, protected=pooling.protected_tokens, normalize=pooling.normalizes)
    return comparable(
        [pool(one) if kind in pooling.tasks else one for kind, one in zip(KINDS, spread_rows(), strict=True)]
    )


def pooled_reference(folder: Path) -> Arrays:
    """The library's module pools the same rows."""
    *_, module = MultiVectorEncoder(str(folder), device="cpu")
    each = zip(KINDS, spread_rows(), strict=True)
    return comparable([np.asarray(module.pool([torch.from_numpy(one)], task=kind)[0]) for kind, one in each])


def comparable(each: Arrays) -> Arrays:
    """In one order, and without the last text: it repeats words, so rounding decides which of its rows are merged."""
    return [rows[np.argsort(rows @ np.cos(np.arange(rows.shape[1])))] for rows in (*each[:2], *each[3:5])]


def multi_vector_reference(folder: Path) -> Arrays:
    model = MultiVectorEncoder(str(folder), device="cpu")
    return [*map(np.asarray, model.encode_query(TEXTS)), *map(np.asarray, model.encode_document(TEXTS))]


def write_pylate(folder: Path) -> Path:
    return write_colbert(folder, query_length=12, document_length=40, skiplist_words=["fox", "."])


def pylate_reference(folder: Path) -> Arrays:
    """run_reference keeps the first result of a folder, which changes here."""
    with TemporaryDirectory() as scratch:
        output = Path(scratch) / "arrays.npz"
        run_script("pylate_colbert", folder, json.dumps({"queries": TEXTS, "documents": TEXTS}), output)
        with np.load(output) as arrays:
            return [rows for name in ("queries", "documents") for rows in unpack(arrays, name)]


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(str(folder / "saved"), create_model_card=False)
    return folder / "saved"


TOKENS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
FACTS = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}


def write_reranker(folder: Path) -> Path:
    config = BertConfig(vocab_size=96, num_labels=1, **FACTS)
    source = write_network(folder / "source", BertForSequenceClassification, config)
    return save(CrossEncoder(str(source), device="cpu", prompts={"query": "fox "}), folder)


def write_modular_reranker(folder: Path) -> Path:
    """As the Ettin rerankers: the first token through two layers and a norm."""
    config = ModernBertConfig(vocab_size=96, **FACTS, **TOKENS)
    source = write_network(folder / "source", ModernBertModel, config)
    names = {"module_output_name": "scores", "activation_function": torch.nn.Identity()}
    layers = [Dense(WIDTH, 12, bias=False, activation_function=torch.nn.GELU()), LayerNorm(12), Dense(12, 1, **names)]
    for parameter in (parameter for layer in layers for parameter in layer.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    modules = [Transformer(str(source)), Pooling(WIDTH, "cls"), *layers]
    return save(CrossEncoder(modules=modules, device="cpu"), folder)


def write_classifier(folder: Path) -> Path:
    """As transformers saves it, without modules."""
    config = ModernBertConfig(vocab_size=96, num_labels=3, **FACTS, **TOKENS)
    return write_network(folder, ModernBertForSequenceClassification, config)


def write_judge(folder: Path) -> Path:
    source = write_qwen3_reranker(folder / "source")
    return save(CrossEncoder(str(source), device="cpu", prompts={"query": "fox "}), folder)


def scores_reference(folder: Path) -> Arrays:
    """The scores of sentence-transformers; for several labels without an activation function, those of transformers."""
    model = CrossEncoder(str(folder), device="cpu")
    scores = model.predict([(QUERY, passage) for passage in PASSAGES], convert_to_numpy=True).reshape(len(PASSAGES), -1)
    labels = model.config.id2label if model.num_labels == len(model.config.id2label) else {0: "LABEL_0"}
    if model.num_labels > 1 and isinstance(model.activation_fn, torch.nn.Identity):
        pipeline = TextClassificationPipeline(model=model.model, tokenizer=model.tokenizer)
        rows = [pipeline.postprocess({"logits": row[None]}, top_k=None) for row in torch.tensor(scores)]
        scores = np.array([[one["score"] for one in row] for row in rows])
    return [scores, np.array([labels[i] for i in range(model.num_labels)])]


def judge_reference(folder: Path) -> Arrays:
    """sentence-transformers' module and activation function over transformers' logits of the same tokens."""
    model = CrossEncoder(str(folder), device="cpu")
    encoder = TextEncoder(spec_of(folder, name=NAME))
    read = ReadRequest(inputs=PASSAGES, query=QUERY, options=TextOptions(), truncate=True)
    with torch.no_grad():
        logits = [model[0].model(torch.tensor(one.ids[None])).logits[:, -1:] for one in encoder.read(read)]
        scores = [model.activation_fn(model[1]({"causal_logits": rows})["scores"]) for rows in logits]
    return [torch.cat(scores).numpy(), np.array(())]


MODES = ("mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "cls_token", "lasttoken")
FLAGS = tuple(f"pooling_mode_{mode}" for mode in MODES)
OLD_TRANSFORMER = (
    *("max_seq_length", "do_lower_case", "model_args", "tokenizer_args", "config_args", "model_kwargs"),
    *("processor_kwargs", "config_kwargs", "tokenizer_name_or_path", "backend"),
)
SENTENCE = ("truncate_dim", "requirements", "similarity_fn_name", "activation_fn", "default_prompt_name", "model_type")
COMMON: Mapping[str, Sequence[str]] = {
    "modules.json": ("idx", "name", "path", "type", "kwargs", "made_up"),
    "config_sentence_transformers.json": SENTENCE,
    "sentence_bert_config.json": (*Transformer.config_keys, *OLD_TRANSFORMER),
}
PYLATE = (
    *("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words"),
    *("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens"),
)
DENSE_KEYS = (*Dense.config_keys, "use_residual", "init_weight")
SCORE_KEYS = (
    *("num_labels", "id2label", "label2id", "problem_type", "sbert_ce_default_activation_function"),
    *("sentence_transformers", "sentence_transformers.activation_fn", "classifier_dropout"),
)
NESTED = (  # objects of config.json that BERT has not, and values in them
    *("id2label.0", "label2id.x", "sentence_transformers.version"),
    *("quantization_config.quant_method", "compression_config.format", "text_config.hidden_size"),
    *("rope_parameters.rope_type", "rope_scaling.type"),
)
ACTIVATIONS = ("torch.nn.modules.activation.ReLU", "torch.nn.Softmax", "os.system", "torch.nn.modules.linear.Identity")
VALUES_OF: Mapping[str, Sequence[Any]] = {  # further values of a key
    "pooling_mode": ("cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean", ["cls"], ["cls", "mean"]),
    "activation_function": (*ACTIVATIONS, "relu"),
    "activation_fn": ACTIVATIONS,
    "sbert_ce_default_activation_function": ACTIVATIONS,
    "module_input_name": ("token_embeddings", "sentence_embedding"),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "model_type": ("SparseEncoder", "CrossEncoder", "ColBERT"),
    "transformer_task": ("fill-mask", "sequence-classification"),
    "type": ("mypackage.Pooling", "pylate.models.Dense.Dense", "sentence_transformers.models.WordWeights"),
    "name": ("0", "1"),
    "path": ("..", "/", "1_Pooling", "./1_Pooling/"),
    "quant_method": ("awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq"),
    "rope_type": ("default", "linear", "yarn"),
    "problem_type": ("regression", "multi_label_classification", "single_label_classification"),
    "pooling_strategy": ("sum", "min"),
    "default_prompt_name": ("query",),
    "default_route": ("query", "document"),
    "strategy": ("min", "OnlyFirst", "OnlySecond"),
    "token": ("fox", "[PAD]", "no token of the vocabulary"),
    "skiplist_tasks": (["query"], "document", ["document", "query"]),
    "keep_only_token_ids": ([5, 6, 7, 8, 9, 10], [1]),
    "skiplist_words": (["fox"], ["fox", "no token of the vocabulary"], ["##s"], [""]),
    "query_prefix": ("[CLS]", "fox", "[Q] ", "two words"),
    "document_prefix": ("[SEP]", "fox", "[D] ", "two words"),
    "query_length": (3, 12, 64, 12.0),
    "document_length": (3, 12, 64, 12.0),
    "classifier_pooling": ("mean", "cls"),
    "classifier_activation": ("relu",),
    "max_length": (5, 20.0, 40_000),
    "embedding_dtype": ("int8", "float16"),
    "direction": ("Left", "right"),
    "stride": (3,),
}
MODEL2VEC = (
    *StaticModelConfig.__annotations__,
    *("max_length", "seq_length", "embedding_dtype", "vocabulary_quantization", "matryoshka_dimensions"),
)
TRUNCATED = {"tokenizer.json": tuple(f"truncation.{key}" for key in TRUNCATION)}
TABLE = {"config.json": MODEL2VEC}
CASES = {
    "dense": Case(
        write_dense,
        dense_answer,
        dense_reference,
        {
            **COMMON,
            "config.json": NESTED,
            "1_Pooling/config.json": (*Pooling.config_keys, "word_embedding_dimension", *FLAGS),
            "2_Dense/config.json": DENSE_KEYS,
            "3_Normalize/config.json": Normalize.config_keys,
        },
    ),
    "two networks": Case(
        lambda folder: write_two(folder, "a table") and folder / "saved",
        two_answer,
        two_reference,
        {"modules.json": COMMON["modules.json"], "router_config.json": ("parameters.route_mappings", "made_up")},
    ),
    "static": Case(
        write_static,
        dense_answer,
        dense_reference,
        {name: COMMON[name] for name in ("modules.json", "config_sentence_transformers.json")},
    ),
    "model2vec": Case(partial(write_table, quantized=True), table_answer, model2vec_reference, TABLE),
    "model2vec, int8": Case(partial(write_table, dtype="int8"), table_answer, model2vec_reference, TABLE),
    "model2vec, truncated": Case(
        lambda folder: truncated(write_table(folder, kind="Unigram")), table_answer, model2vec_reference, TRUNCATED
    ),
    "static, truncated": Case(
        lambda folder: truncated(write_embedding(folder)), table_answer, embedding_reference, TRUNCATED
    ),
    "splade": Case(
        write_splade,
        sparse_answer,
        sparse_reference,
        {
            "config_sentence_transformers.json": ("model_type", "max_active_dims"),
            "sentence_bert_config.json": (),
            "1_SpladePooling/config.json": (*SpladePooling.config_keys, "word_embedding_dimension", "chunk_size"),
        },
    ),
    "sparse table": Case(
        lambda folder: write_router(folder) and folder / "saved",
        sparse_answer,
        sparse_reference,
        {
            "router_config.json": ("parameters.route_mappings", "made_up"),
            "query_0_SparseStaticEmbedding/config.json": (*SparseStaticEmbedding.config_keys, "path"),
        },
    ),
    "multi-vector": Case(
        write_multi_vector,
        tokens_answer,
        multi_vector_reference,
        {
            **COMMON,
            "1_Dense/config.json": DENSE_KEYS,
            "2_MultiVectorMask/config.json": MultiVectorMask.config_keys,
            "3_Normalize/config.json": Normalize.config_keys,
        },
    ),
    "pooled multi-vector": Case(
        write_pooled,
        pooled_answer,
        pooled_reference,
        {"4_HierarchicalTokenPooling/config.json": HierarchicalTokenPooling.config_keys},
    ),
    "pylate": Case(
        write_pylate,
        tokens_answer,
        pylate_reference,
        {
            "modules.json": COMMON["modules.json"],
            "config_sentence_transformers.json": (*SENTENCE, *PYLATE),
            "sentence_bert_config.json": ("max_seq_length", "do_lower_case"),  # all that its version of the library has
            "1_Dense/config.json": ("in_features", "out_features", "bias", "activation_function", "use_residual"),
        },
        second=multi_vector_reference,  # without words of a skiplist that the vocabulary has not, and with prompts
    ),
    "reranker": Case(write_reranker, scores_answer, scores_reference, {**COMMON, "config.json": SCORE_KEYS}),
    "reranker of modules": Case(
        write_modular_reranker,
        scores_answer,
        scores_reference,
        {
            **COMMON,
            "1_Pooling/config.json": Pooling.config_keys,
            "2_Dense/config.json": DENSE_KEYS,
            "3_LayerNorm/config.json": LayerNorm.config_keys,
            "4_Dense/config.json": DENSE_KEYS,
        },
    ),
    "classifier": Case(
        write_classifier,
        scores_answer,
        scores_reference,
        {"config.json": (*SCORE_KEYS, "classifier_pooling", "classifier_bias", "classifier_activation", "norm_bias")},
    ),
    "judge": Case(
        write_judge,
        scores_answer,
        judge_reference,
        {
            "config_sentence_transformers.json": ("activation_fn", "default_prompt_name", "model_type"),
            "1_LogitScore/config.json": LogitScore.config_keys,
        },
    ),
}
REMOVED = object()


def changes(file: str, saved: Any, further: Sequence[str]) -> Iterator[tuple[Place, Any]]:
    """The place and value of each change, and the removal of each entry."""
    added = [tuple(key.split(".")) for key in further]
    known = list(places(saved)) if file not in ("config.json", "tokenizer.json") else []
    if isinstance(saved, list):
        added = [(index, *key) for index in range(len(saved)) for key in added]
    elif file == "config.json":
        known = [place for place in places(saved) if (place[0],) in added]
    for number, place in enumerate(dict.fromkeys((*known, *added))):
        own = value_at(saved, place)
        for value in (*VALUES, EDGES[number % len(EDGES)], *VALUES_OF.get(str(place[-1]), ()), REMOVED):
            if value is None and file == "config.json":
                continue  # an unset key
            if own is not value and (type(own) is not type(value) or own != value):
                yield place, value


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(value[key], (*at, key))


def value_at(value: Any, place: Place) -> Any:
    for key in place:
        if not isinstance(value, dict | list) or (isinstance(value, dict) and key not in value):
            return REMOVED
        value = value[key]
    return value


def changed(saved: Any, place: Place, value: Any) -> Any:
    made = deepcopy(saved)
    inner = made
    for key in place[:-1]:
        if isinstance(inner, dict) and not isinstance(inner.get(key), dict | list):
            inner[key] = {}
        inner = inner[key]
    if value is REMOVED:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return made


def same(got: Arrays, want: Arrays) -> bool:
    return len(got) == len(want) and all(
        a.shape == b.shape and (np.array_equal(a, b) if a.dtype.kind == "U" else np.allclose(a, b, atol=1e-4))
        for a, b in zip(got, want, strict=True)
    )


@pytest.fixture(scope="module", params=CASES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    case = CASES[request.param]
    return case, case.write(tmp_path_factory.mktemp("model"))


@pytest.mark.filterwarnings("ignore")
def test_a_changed_setting_gives_the_reference_numbers_or_is_refused(written: tuple[Case, Path]) -> None:
    """Each refusal names the key."""
    case, folder = written
    unchanged = case.reference(folder)
    assert same(case.answer(folder), unchanged)
    wrong = [
        f"{file}: {'.'.join(map(str, place))} {'removed' if value is REMOVED else repr(value)}: {fault}"
        for file, further in case.files.items()
        for place, value, fault in faults(case, folder, folder / file, further, unchanged)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_a_foreign_tensor_of_any_module_is_refused_by_name(written: tuple[Case, Path]) -> None:
    """Of the body, a head, a Dense module or a table: the libraries ignore it, though the model was trained with it."""
    case, folder = written
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    for file in files:
        saved, tensors = file.read_bytes(), load_file(file)
        rows = len(next(iter(tensors.values())))
        names = ("made_up.weight",) if case.reference is model2vec_reference else ("made_up.weight", "weights")
        for name in names:  # model2vec has the second; its table has another name
            save_file({**tensors, name: torch.ones(rows)}, file, {"format": "pt"})
            with pytest.raises(StartError, match=rf"\b{name}\b"):
                case.answer(folder)
        file.unlink()
        file.write_bytes(saved)


FURTHER_FILES: Mapping[str, Any] = {
    "generation_config.json": {"bos_token_id": 7, "max_length": 5, "made_up": 1},  # generation of text only
    "preprocessor_config.json": {"image_processor_type": "CLIPImageProcessor", "do_resize": True},  # images only
    "processor_config.json": {"processor_class": "CLIPProcessor", "made_up": 1},  # images only
    "chat_template.json": {"chat_template": "{{ messages }}"},  # conversations only, as the next
    "chat_template.jinja": "{% for one in messages %}fox {{ one.content }}{% endfor %}",
    "special_tokens_map.json": {"mask_token": "fox", "additional_special_tokens": ["dog"]},
    "added_tokens.json": {"quick brown": 7, "made up": 96},
    "vocab.txt": "[PAD]\nfox\n",  # tokenizer.json precedes it, as the next two
    "vocab.json": {"fox": 0},
    "merges.txt": "f o\n",
    "tokenizer.model": "x",
    "README.md": "---\ndefault_prompt_name: query\n---",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("listed", [False, True], ids=["without added_tokens_decoder", "with added_tokens_decoder"])
def test_a_further_file_gives_the_reference_numbers_or_is_refused(tmp_path: Path, listed: bool) -> None:
    """Where the library raises an error, as for a processor of images, the file must change nothing."""
    case, wrong = CASES["dense"], []
    folder = case.write(tmp_path)
    if listed:  # as versions 4.34 to 4.57 of transformers save it; then two of the files are not read
        tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        path = folder / "tokenizer_config.json"
        decoder = {str(token.pop("id")): token for token in tokens}
        path.write_text(json.dumps({**json.loads(path.read_text()), "added_tokens_decoder": decoder}))
    unchanged = case.answer(folder)
    for name, content in FURTHER_FILES.items():
        path = folder / name
        before = path.read_bytes() if path.exists() else None
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        try:
            got = case.answer(folder)
        except (StartError, InvalidRequest) as refused:
            assert name in str(refused) or "vocabulary" in str(refused)
        else:
            try:
                want = case.reference(folder)
            except Exception:  # of any class
                want = unchanged
            if not same(got, want):
                wrong.append(name)
        path.unlink()
        if before is not None:
            path.write_bytes(before)
    assert not wrong, wrong


def faults(
    case: Case, folder: Path, path: Path, further: Sequence[str], unchanged: Arrays
) -> Iterator[tuple[Place, Any, str]]:
    text = path.read_text() if path.is_file() else None
    saved = {} if text is None else json.loads(text)
    for place, value in changes(path.name if path.parent == folder else "", saved, further):
        path.write_text(json.dumps(changed(saved, place, value)))
        if fault := fault_of(case, folder, place, unchanged):
            yield place, value, fault
    path.unlink()
    if text is not None:
        path.write_text(text)


def fault_of(case: Case, folder: Path, place: Place, unchanged: Arrays) -> str | None:
    keys = {key for key in place if isinstance(key, str)}
    try:
        got = case.answer(folder)
    except StartError as refused:
        return None if not keys or keys & SHAPES or any(key in str(refused) for key in keys) else f"refused: {refused}"
    except Exception as error:
        return f"{type(error).__name__} {error}"
    if keys & NO_EFFECT:
        return None if same(got, unchanged) else "other numbers"
    fault = "other numbers"
    for reference in filter(None, (case.second, case.reference)):
        try:
            if same(got, reference(folder)):
                return None
        except BaseException as error:  # of any class; a panic of tokenizers is no Exception
            fault = f"accepted; the library raises {type(error).__name__} {str(error)[-90:]}"
    return fault
