"""Models with scores: classifiers, cross-encoders (one label, pairs), and language models that rerank.

reader.py calls this at start. A yes-or-no reranker is a language model such as Qwen3-Reranker; its score comes from the
logits of the two words. Its chat template is not run: the words around query and document come from the catalogue, and
a model that needs other words is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from vectord.checkpoints import catalogue
from vectord.checkpoints.activations import ACTIVATIONS, read_activation
from vectord.checkpoints.checkpoint import find_tensor, tensor_shape
from vectord.checkpoints.config_keys import harmless, refuse_null, refuse_unread
from vectord.checkpoints.files.read import OPTION, unread_settings
from vectord.checkpoints.folder import (
    ANSWERS_CLASS,
    ModelFolder,
    chain_width,
    pooled_width,
    read_after_pooling,
    read_chat_template,
    read_dense,
    wrong_order,
)
from vectord.checkpoints.kinds.embedding import read_pooling
from vectord.checkpoints.spec import DenseModule, ModelSpec, ScoreActivation, YesNo
from vectord.checkpoints.vocabulary import find_ids
from vectord.errors import ConfigError, ModelUnavailable

LABELS_LIMIT = 2**16  # the largest known model has 21,000
LABEL_LIMIT_CHARACTERS = 1000
_DEFAULT_LABELS = 2  # transformers'
_Label = Annotated[str, Meta(max_length=LABEL_LIMIT_CHARACTERS)]
_Labels = Annotated[dict[str, _Label], Meta(min_length=1, max_length=LABELS_LIMIT)]

_MODULAR = "Transformer, Pooling, then Dense, LayerNorm and Normalize in any order, and a Dense in the end"
_ORIGINAL = "Qwen/Qwen3-Reranker-0.6B"
_ORIGINALS = {  # by model_type
    "qwen3": _ORIGINAL,
    "qwen3_vl": "Qwen/Qwen3-VL-Reranker-2B",
    "t5gemma2": "KaLM-Embedding/KaLM-Reranker-V1-Nano",
}
_LAYERWISE = "BAAI/bge-reranker-v2-minicpm-layerwise"
_QUERIT = "Querit/Querit-4B"
_NEMOTRON = "nvidia/llama-nemotron-rerank-1b-v2"
# The start of the original's question; conversions keep it in their chat template.
_QUESTION = "Judge whether the Document meets the requirements based on the Query and the Instruct provided"

_PROBLEMS: Mapping[str, ScoreActivation] = {
    "regression": "identity",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


# --- classifiers ----------------------------------------------------------------------------------------------


def add_classifier(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the labels of a classifier or cross-encoder."""
    has_answers = folder.is_saved_as(ANSWERS_CLASS)
    labels = ("LABEL_0",) if has_layer_heads(folder) or has_answers else _labels(folder)
    # A Qwen3-Reranker that was converted to a classifier still needs the words around the pair.
    template = find_template(folder) if len(labels) == 1 else None
    _refuse_prompt(folder, spec, template)
    return replace(
        spec,
        outputs=frozenset({"scores"}),
        labels=labels,
        score_activation="tanh" if has_answers else _score_activation(folder, labels=len(labels)),
        yes_no=template,
        caps_query=_caps_query(folder),
    )


def add_modular_classifier(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the head of a CrossEncoder of modules: a pooling, then layers, the last of which gives the scores."""
    kinds = [module.kind for module in folder.modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:][-1:] != ["Dense"]:
        raise wrong_order(folder.root, folder.modules, supported=_MODULAR)
    between = [read_after_pooling(module) for module in folder.modules[2:-1]]
    if None in between:
        raise wrong_order(folder.root, folder.modules, supported=_MODULAR)
    last = read_dense(folder.modules[-1], over="sentence_embedding", to="scores")
    layers = (*(module for module in between if module is not None), last)
    pooling = read_pooling(folder)
    count = chain_width(pooled_width(spec.hidden_size, pooling), layers)
    _refuse_prompt(folder, spec, None)
    return replace(
        spec,
        outputs=frozenset({"scores"}),
        labels=tuple(f"LABEL_{i}" for i in range(count)),
        pooling=pooling,
        dense_modules=layers,
        score_activation=_score_activation(folder, labels=count),
        caps_query=_caps_query(folder),
    )


def _caps_query(folder: ModelFolder) -> bool | None:
    """Whether the model is one of BGE's rerankers, or derives from one by its name: FlagEmbedding reads their pairs."""
    return True if "bge-reranker" in folder.name or has_layer_heads(folder) else None


def _refuse_prompt(folder: ModelFolder, spec: ModelSpec, template: YesNo | None) -> None:
    """Raise ModelUnavailable for a prompt that the library puts before pairs; a language model's is its question."""
    name = spec.default_prompt_name
    question = "" if template is None else template.instruction
    if name is not None and spec.prompts[name] not in ("", question) and "default_prompt_name" not in folder.allowed:
        raise ModelUnavailable(
            f"{folder.sentence.path}: default_prompt_name {name[:80]!r} is not supported for a model with scores; "
            f"{OPTION} default_prompt_name ignores its prompt"
        )


def has_layer_heads(folder: ModelFolder) -> bool:
    """Return whether the model is a language model with a head of one number after each of its last layers."""
    return not folder.modules and folder.is_saved_as("LayerWiseMiniCPMForCausalLM")


def cut_layers(spec: ModelSpec, layer: int) -> ModelSpec:
    """Return the reranker that ends after this layer, with the layer's head; the network reads the key."""
    config = unread_settings(spec.folder / "config.json", spec.config)
    first, last = config.get("start_layer"), config.get("num_hidden_layers")
    if spec.model_type != "minicpm" or type(first) is not int or type(last) is not int:
        raise ConfigError(f"cutoff_layer {layer}: {spec.model_id} has no heads of several layers")
    if not first <= layer <= last:
        raise ConfigError(f"cutoff_layer {layer}: {spec.model_id} has heads of its layers {first} to {last}")
    return replace(spec, config=config.of({**config.fields, "cutoff_layer": layer}))


def _labels(folder: ModelFolder) -> tuple[str, ...]:
    """The values of id2label, whose keys are "0", "1" ... in any order; without it LABEL_0, LABEL_1 ..."""
    refuse_null(folder.config, "num_labels sentence_transformers")
    count = folder.config.value("num_labels", Annotated[int, Meta(ge=1, le=LABELS_LIMIT)])
    named = folder.config.value("id2label", _Labels)
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(count or _DEFAULT_LABELS))
    labels = tuple(named[str(i)] for i in range(len(named)) if str(i) in named)
    if len(labels) < len(named) or count not in (None, len(labels)):
        raise ModelUnavailable(
            f'{folder.config.path}: id2label must have the keys "0", "1" ... and as many labels as num_labels'
        )
    return labels


def _score_activation(folder: ModelFolder, *, labels: int) -> ScoreActivation:
    """The folder's own, else that of its problem_type, else sigmoid for one label and softmax for several.

    sentence-transformers writes a class path: next to the modules since version 6, in config.json under two names
    before.
    """
    problem = folder.config.one_of("problem_type", (None, *_PROBLEMS))
    if problem == "single_label_classification" and labels == 1:
        raise ModelUnavailable(f"{folder.config.path}: problem_type {problem} needs more than one label")
    default: ScoreActivation = _PROBLEMS.get(str(problem), "sigmoid" if labels == 1 else "softmax")
    inner = folder.config.value("sentence_transformers", dict[str, Any], {})
    if "activation_fn" in inner:
        older = (folder.config, "activation_fn", inner["activation_fn"])
    else:
        key = "sbert_ce_default_activation_function"
        older = (folder.config, key, folder.config.get(key))
    settings, key, path = older
    if folder.sentence.get("activation_fn") is not None:
        settings, key, path = folder.sentence, "activation_fn", folder.sentence["activation_fn"]
    if path is None or key in settings.allowed:
        return default
    activation = read_activation(settings, key, path, ACTIVATIONS)
    # For several labels, Identity only means that the author chose nothing.
    return default if activation == "identity" and labels > 1 else activation


# Architectures whose ...ForTokenClassification is one layer over the last hidden states, by the layer's name.
# ModernBERT has a `head` before it.
_ENCODERS = "bert camembert deberta-v2 distilbert electra ernie modernbert mpnet roberta xlm-roberta"
_TOKEN_CLASSIFIERS: Mapping[str, str] = {
    **dict.fromkeys(_ENCODERS.split(), "classifier"),
    **dict.fromkeys(("gemma", "llama", "mistral", "qwen2", "qwen3"), "score"),
}


def add_token_classifier(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the scores of each token if the model was saved with such a head."""
    if folder.modules or not folder.is_saved_as("ForTokenClassification"):
        return spec
    labels = _labels(folder)
    shape = (len(labels), spec.hidden_size)
    files = [path for path in spec.weights if path.suffix != ".onnx"]
    layer = _TOKEN_CLASSIFIERS.get(spec.architecture)
    if layer is None or all(tensor_shape(path, f"{layer}.weight") != shape for path in files):
        return spec
    return replace(
        spec,
        outputs=spec.outputs | {"token_scores"},
        token_labels=labels,
        score_activation=_score_activation(folder, labels=len(labels)),
    )


# --- lists ----------------------------------------------------------------------------------------------------

_PROJECTIONS: tuple[tuple[str, ScoreActivation], ...] = (("projector.0", "relu"), ("projector.2", "identity"))


def add_listwise(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the words around the passages of a listwise reranker, and the layers after its markers."""
    entry = folder.entry
    if entry is None or entry.listwise is None:  # v3.5's layers slide, and its own code reads longer texts
        slides = folder.config.get("use_sliding_window") is True
        entry = catalogue.find("jinaai/jina-reranker-v3.5" if slides else "jinaai/jina-reranker-v3")
    assert entry is not None
    modules = []
    for layer, activation in _PROJECTIONS:
        path, shape = find_tensor(spec.weights, f"{layer}.weight") or (folder.transformer, ())
        if len(shape) != 2 or not min(shape):
            raise ModelUnavailable(f"{path}: a listwise reranker without a matrix {layer}.weight")
        modules.append(
            DenseModule(
                folder=folder.transformer,
                weights=path,
                in_features=shape[1],
                out_features=shape[0],
                activation=activation,
                layer=layer,
            )
        )
    chain_width(spec.hidden_size, modules)
    return replace(spec, outputs=frozenset({"markers"}), dense_modules=tuple(modules), listwise=entry.listwise)


# --- yes or no ------------------------------------------------------------------------------------------------


def is_yes_no(folder: ModelFolder) -> bool:
    """Return whether a language model without modules.json is a reranker whose question is known."""
    if find_template(folder) is not None:
        return True
    if "rerank" in folder.name:
        raise ModelUnavailable(
            f"{folder.root}: a reranker whose question is not known: it is not in the catalogue and does not derive "
            "from Qwen3-Reranker; --task rerank uses Qwen3-Reranker's question"
        )
    return False


def add_yes_no(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the words around a pair, and the ids of the answers."""
    template = find_template(folder)
    if template is None and folder.modules:
        raise ModelUnavailable(f"{folder.root}: the question that this reranker expects is not known")
    template = template or _template_of(_ORIGINAL)  # a plain language model that the operator chose for the task
    _refuse_prompt(folder, spec, template)
    if folder.modules:  # sentence-transformers' LogitScore has the ids
        if [module.kind for module in folder.modules] != ["Transformer", "LogitScore"]:
            raise wrong_order(folder.root, folder.modules, supported="Transformer, LogitScore")
        config = folder.modules[1].read_config()
        refuse_null(config, "module_input_name")
        saved = [config.value(key, Annotated[int, Meta(ge=0, lt=2**31)]) for key in ("false_token_id", "true_token_id")]
        token_ids = tuple(value for value in saved if value is not None)
        if saved[1] is None or len(token_ids) != len(template.answers):
            message = f"true_token_id and false_token_id must be the ids of {template.answers}"
            raise ModelUnavailable(f"{config.path}: {message}")
        refuse_unread(config, harmless("the usual name", "module_input_name", "causal_logits"))
    else:
        ids = find_ids(spec.tokenizer, template.answers)
        if missing := [word for word in template.answers if word not in ids]:
            raise ModelUnavailable(f"{spec.tokenizer}: {missing[0]!r} is not a token of its vocabulary")
        token_ids = tuple(ids[word] for word in template.answers)
    return replace(
        spec,
        outputs=frozenset({"scores"}),
        score_activation=_score_activation(folder, labels=1),
        yes_no=replace(template, token_ids=token_ids),
        caps_query=_caps_query(folder),
    )


def find_template(folder: ModelFolder) -> YesNo | None:
    """Return the words around a pair: the catalogue's, or those of the model that it derives from."""
    if folder.question is not None:
        template = _template_of(_ORIGINAL)
        body = str(template.body).replace("{instruction}", template.instruction)
        if folder.question not in ("", template.prefix + body + template.suffix):
            raise ModelUnavailable(
                f"{folder.root}: tokenizer.chat_template.rerank is not the question of Qwen3-Reranker"
            )
        return template
    if folder.entry is not None and folder.entry.yes_no is not None:
        return folder.entry.yes_no
    if folder.is_saved_as(ANSWERS_CLASS):
        return _template_of(_QUERIT)
    if folder.model_type in _ORIGINALS:
        chat_template = read_chat_template(folder)
        if "rerank" in folder.name or (chat_template is not None and _QUESTION in chat_template.text):
            return _template_of(_ORIGINALS[folder.model_type])
    if has_layer_heads(folder):
        return _template_of(_LAYERWISE)
    if folder.model_type == "llama_bidirec" and folder.is_saved_as("ForSequenceClassification"):
        return _template_of(_NEMOTRON)
    return None


def _template_of(model: str) -> YesNo:
    entry = catalogue.find(model)
    assert entry is not None and entry.yes_no is not None, f"the catalogue has no template of {model}"
    return entry.yes_no
