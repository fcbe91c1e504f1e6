"""A model's folder with its JSON files: `open_folder(located)`.

reader.py opens it at start; the modules of kinds/ read from it. modules.json lists the modules of a
sentence-transformers folder. Only known modules are interpreted: an unknown one stops the start, because leaving it out
would give plausible but wrong vectors. Class paths in files are compared with known ones and never imported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec.structs import replace

from vectord.checkpoints import catalogue, router
from vectord.checkpoints.activations import DENSE_ACTIVATIONS, read_activation
from vectord.checkpoints.checkpoint import find_weights, open_checkpoint
from vectord.checkpoints.config_keys import MODULE, refuse_null, refuse_unread
from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.read import OPTION, Settings, read_bytes, read_json, read_settings
from vectord.checkpoints.gguf.model import read_model
from vectord.checkpoints.spec import ChatTemplate, DenseModule, Located, ModelPooling, NormModule
from vectord.checkpoints.vocabulary import token_text
from vectord.errors import ModelUnavailable

MODULES_LIMIT = 32

STATIC = "static"  # the model_type and architecture of static models
STATIC_MODULE = "StaticEmbedding"
# The class of jina-embeddings-v5-text: a network, an adapter for each task, and its last token, in one module.
TASKS_CLASS = "JinaEmbeddingsV5Model"
ATTENTION_CLASS = "C2LLMForEmbedding"  # the same for C2LLM: a network, and the attention that pools its tokens
ANSWERS_CLASS = "MLQwen3Model"  # of Querit-4B: a Qwen3 with a head of two answers
# Of colpali_engine: the model_type that such a model has here, where its config.json has that of its base model.
PAGES_CLASSES = {"ColPali": "colpali", "ColQwen2": "colqwen2", "ColQwen2_5": "colqwen2", "ColQwen3": "colqwen3"}
POOLING_CLASSES: Mapping[str, ModelPooling] = {TASKS_CLASS: "last", ATTENTION_CLASS: "attention"}
LIST_CLASS = "JinaForRanking"  # of the listwise rerankers jina-reranker-v3 and v3.5
WIDTH_LIMIT = 2**20

_MODEL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ARCHITECTURES_LIMIT = 16
ADAPTER = "adapter_config.json"  # peft's
TEMPLATE_LIMIT_BYTES = 2**20  # the longest known template has 25 kB
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# The last words of the class paths.
_KINDS = (
    "Transformer",
    "C2LLMTransformer",  # C2LLM's own
    "MultiModalTransformer",  # of GME-Qwen2-VL
    "MLMTransformer",  # before version 6: Transformer with the masked-language head
    "Pooling",
    "Dense",
    "LayerNorm",
    "Normalize",
    "FlexibleQuantizer",  # pplx-embed's own
    "SpladePooling",
    "HierarchicalTokenPooling",
    "MultiVectorMask",
    "LogitScore",
    "StaticEmbedding",
    "SSE",  # RikkaBotan's own: StaticEmbedding with a tanh; the next is the same, its table in 4 bits
    "SSEQ",
    router.TABLE,
    *router.ROUTERS,
    "Dropout",
)
_TRAINING_ONLY = frozenset({"Dropout"})
# The words before them: of sentence-transformers 2 to 6, or classes of pylate and of models' own.
_PACKAGE = re.compile(r"sentence_transformers\.(models|\w+\.(models|modules))(\.\w+)?")
_FURTHER_CLASS = re.compile(
    r"pylate\.models(\.Dense)?\.Dense"
    r"|([\w./-]+--)?(custom_st\.(MultiModal)?Transformer|custom_transformer\.C2LLMTransformer|st_quantize\.FlexibleQuantizer"
    r"|(\w+\.)?SSEQ?)"
)


class Module(msgspec.Struct, frozen=True):
    kind: str  # one of _KINDS; ...Transformer becomes Transformer, SSE and SSEQ become StaticEmbedding
    folder: Path
    allowed: frozenset[str] = frozenset()  # keys of its configuration that the operator allows to be unknown
    class_path: str = ""

    def read_config(self) -> Settings:
        return read_settings(self.folder / "config.json", allowed=self.allowed)


class ListedModules(msgspec.Struct, frozen=True):
    """The modules of a folder's modules.json, Transformer or StaticEmbedding first; () without such a file."""

    modules: tuple[Module, ...] = ()  # of a Router, those of documents, and the modules after it
    queries: tuple[Module, ...] = ()  # the same of a Router's queries, if they have a network of their own
    query_table: Module | None = None  # or this table of weights
    query_by_default: bool = False  # whether texts without a kind are queries


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    located: Located
    root: Path  # usually the located folder
    name: str  # the last part of the model's id, in lower case
    entry: catalogue.Entry | None  # the catalogue's entry of that id
    modules: tuple[Module, ...] = ()  # of modules.json, or of one route of its Router; () without one
    listed: ListedModules = ListedModules()  # all of modules.json
    transformer: Path  # the folder of config.json and weights; usually `root`
    tokenizer: Path  # the folder of the tokenizer's files; usually `transformer`
    adapter: Path | None = None  # the folder of an adapter that changes every text
    model_type: str  # config.json's; "static" for a table of token vectors; see PAGES_CLASSES
    architectures: tuple[str, ...]  # transformers classes that the model was saved as, the main one first
    config: Settings  # config.json, with the catalogue's is_causal if the file has none
    sentence: Settings  # config_sentence_transformers.json; empty without one, as for the next two
    transformer_module: Settings  # sentence_bert_config.json
    tokenizer_config: Settings
    allowed: frozenset[str]  # keys of any configuration file that the operator allows to be unknown
    pooling: ModelPooling | None = None  # of a model without modules: a GGUF file, or one of POOLING_CLASSES
    dense: tuple[DenseModule, ...] = ()  # the same
    question: str | None = None  # the same: of a yes-or-no reranker; "" if the file does not have its words

    @property
    def has_tasks(self) -> bool:
        return self.architectures[:1] == (TASKS_CLASS,)

    def is_saved_as(self, suffix: str) -> bool:
        """Return whether the model was saved by a transformers class with this suffix, such as ForMaskedLM."""
        return any(architecture.endswith(suffix) for architecture in self.architectures)


def open_folder(located: Located, allowed: frozenset[str] = frozenset(), *, reads_queries: bool = False) -> ModelFolder:
    """allowed: keys of any configuration file that may be unknown. reads_queries: with the modules of queries."""
    if is_gguf(located.folder):
        return _open_gguf(located, allowed)
    listed = read_modules(located.folder, allowed)
    modules = listed.queries if reads_queries else listed.modules
    transformer = modules[0].folder if modules else located.folder
    entry = catalogue.find(located.model_id)
    is_adapter = (transformer / ADAPTER).is_file() and ADAPTER not in allowed
    if is_adapter and (listed.queries or listed.query_table):
        raise ModelUnavailable(f"{transformer / ADAPTER}: an adapter of one route of a Router is not supported")
    if is_adapter and located.base is not None:
        return _open_adapter(located, located.base, modules, transformer, allowed)
    is_module = bool(modules) and modules[0].kind == STATIC_MODULE
    config = read_settings(transformer / "config.json", optional=is_module, allowed=allowed)
    architectures = config.value("architectures", tuple[str, ...], ())
    pooling = POOLING_CLASSES.get(next(iter(architectures), ""))
    if pooling is not None:
        modules = modules if modules[1:] else ()
    if is_gme(config) and {module.kind for module in modules} <= {"Transformer", "Pooling", "Normalize"}:
        modules = ()  # its class does all of this
    if architectures[:1] == (TASKS_CLASS,):
        config = _network_of_tasks(config)
    model_type = PAGES_CLASSES.get(architectures[0] if architectures else "", config.get("model_type"))
    if is_module or has_table(transformer, model_type):
        model_type = STATIC
    if not isinstance(model_type, str) or not _MODEL_TYPE.fullmatch(model_type):
        raise ModelUnavailable(f"{config.path}: model_type is missing or not a name")
    if entry is not None and entry.is_causal is not None:  # their own code, which is never run, decides the direction
        config = config.of({"is_causal": entry.is_causal, **config.fields})
    return ModelFolder(
        located=located,
        root=located.folder,
        name=located.model_id.rpartition("/")[2].lower(),
        entry=entry,
        modules=modules,
        listed=listed,
        transformer=transformer,
        tokenizer=transformer,
        adapter=transformer if is_adapter else None,
        model_type=model_type,
        architectures=architectures[:_ARCHITECTURES_LIMIT],
        config=config,
        sentence=read_settings(located.folder / "config_sentence_transformers.json", optional=True, allowed=allowed),
        transformer_module=read_settings(_transformer_module(transformer), optional=True, allowed=allowed),
        tokenizer_config=read_settings(transformer / "tokenizer_config.json", optional=True, allowed=allowed),
        allowed=allowed,
        pooling=None if modules else pooling,
    )


def is_gme(config: Settings) -> bool:
    """Return whether the class is that of GME-Qwen2-VL, in its own code."""
    classes = config.fields.get("auto_map")
    return isinstance(classes, dict) and any(str(name).endswith(".GmeQwen2VL") for name in classes.values())


def _network_of_tasks(config: Settings) -> Settings:
    """config.json of a TASKS_CLASS with the model_type of its network: it has one of its own, for both networks."""
    fields = {key: value for key, value in config.fields.items() if key != "is_decoder"}
    model_type = "eurobert" if config.get("is_decoder") is False else "qwen3"
    return config.of({**fields, "model_type": model_type})


def _transformer_module(folder: Path) -> Path:
    """Older versions named the file after the architecture: sentence_roberta_config.json ..."""
    named = folder / "sentence_bert_config.json"
    return named if named.is_file() else min(folder.glob("sentence_*_config.json"), default=named)


def _open_adapter(
    located: Located, base: Located, modules: tuple[Module, ...], adapter: Path, allowed: frozenset[str]
) -> ModelFolder:
    """The base model's folder with the adapter, and with the files that the adapter's folder has of its own.

    adapter: the folder of adapter_config.json.
    """
    if (base.folder / ADAPTER).is_file():
        raise ModelUnavailable(f"{adapter / ADAPTER}: its base model has an adapter too, which is not supported")
    model = open_folder(base, allowed)
    if model.listed.queries or model.listed.query_table:
        raise ModelUnavailable(f"{adapter / ADAPTER}: its base model is a Router, of which an adapter is not supported")
    paths = {
        "sentence": located.folder / "config_sentence_transformers.json",
        "transformer_module": _transformer_module(adapter),
    }
    own: dict[str, Any] = {name: read_settings(path, allowed=allowed) for name, path in paths.items() if path.is_file()}
    if any((adapter / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        tokenizer_config = read_settings(adapter / "tokenizer_config.json", optional=True, allowed=allowed)
        own |= {"tokenizer": adapter, "tokenizer_config": tokenizer_config}
    if modules:
        own |= {"root": located.folder, "modules": modules}
    return replace(model, located=located, adapter=adapter, **own)


def _open_gguf(located: Located, allowed: frozenset[str]) -> ModelFolder:
    """A GGUF file as the folder that it was made from."""
    model = read_model(located.folder, allowed)
    entries = (catalogue.find(name) for name in (located.model_id, *model.names))
    nothing = Settings(located.folder, {}, allowed)
    return ModelFolder(
        located=located,
        root=located.folder,
        name=located.model_id.rpartition("/")[2].lower(),
        entry=next(
            (entry for entry in entries if entry and entry.model_type == model.config.fields["model_type"]), None
        ),
        transformer=located.folder,
        tokenizer=located.folder,
        model_type=model.config.fields["model_type"],
        architectures=tuple(model.config.fields["architectures"]),
        config=model.config,
        sentence=nothing,
        transformer_module=Settings(located.folder, {"max_seq_length": model.max_tokens}, allowed),
        tokenizer_config=nothing,
        allowed=allowed,
        pooling=model.pooling,
        dense=model.dense,
        question=model.question,
    )


def has_table(folder: Path, model_type: object) -> bool:
    """Return whether the folder is model2vec's: by its model_type, or without one by a tensor of token vectors."""
    file = folder / "model.safetensors"
    return model_type == "model2vec" or (
        model_type is None and file.is_file() and "embeddings" in open_checkpoint((file,))
    )


def read_chat_template(folder: ModelFolder, operators: str | None = None) -> ChatTemplate | None:
    """The operator's template, else that of chat_template.jinja, else that of tokenizer_config.json, where one of
    several is called default. It is never run here."""
    path, text = folder.tokenizer / "chat_template.jinja", folder.tokenizer_config.fields.get("chat_template")
    if operators is not None:
        text = operators
    elif path.exists():
        text = read_bytes(path, TEMPLATE_LIMIT_BYTES).decode("utf-8", "replace")
    elif isinstance(text, list):
        named = (each for each in text if isinstance(each, dict) and each.get("name") == "default")
        text = next(named, {}).get("template")
    if not isinstance(text, str):
        return None
    files = read_settings(folder.tokenizer / "special_tokens_map.json", optional=True), folder.tokenizer_config
    tokens = {name: content for file in files for name in _TOKENS if (content := token_text(file.fields.get(name)))}
    return ChatTemplate(text, tokens)


# --- modules.json ---------------------------------------------------------------------------------------------


def read_modules(folder: Path, allowed: frozenset[str] = frozenset()) -> ListedModules:
    path = folder / "modules.json"
    if not path.exists():
        return ListedModules()
    listed = read_json(path)
    if not isinstance(listed, list) or not 0 < len(listed) <= MODULES_LIMIT:
        raise ModelUnavailable(f"{path}: expected a list of 1 to {MODULES_LIMIT} modules")
    names = [fields.get("name") for fields in listed if isinstance(fields, dict)]
    if not all(isinstance(name, str) and name and "." not in name for name in names) or len({*names}) < len(names):
        raise ModelUnavailable(f"{path}: each module must have a name of its own, without dots")
    first, *rest = (_module(path, fields, allowed) for fields in listed)
    documents, queries, table, by_default = [first], list[Module](), None, False
    if first.kind in router.ROUTERS:
        file = first.folder / router.FILE
        of_documents, of_queries, by_default = router.read_routes(file)
        documents, queries = ([_module(file, fields, allowed) for fields in own] for own in (of_documents, of_queries))
        if queries and queries[0].kind == router.TABLE:
            table, queries = queries[0], []
    found = [tuple(each for each in (*own, *rest) if each.kind not in _TRAINING_ONLY) for own in (documents, queries)]
    for modules in found if queries else found[:1]:
        if not modules or modules[0].kind not in ("Transformer", STATIC_MODULE):
            raise wrong_order(folder, modules, supported="Transformer or StaticEmbedding first")
    return ListedModules(found[0], found[1] if queries else (), table, by_default)


def wrong_order(folder: Path, modules: Collection[Module], *, supported: str) -> ModelUnavailable:
    """Return the error for known modules in an unsupported order."""
    kinds = ", ".join(module.kind for module in modules)
    return ModelUnavailable(f"{folder / 'modules.json'}: modules in the order {kinds}; supported is {supported}")


def _module(path: Path, fields: Any, allowed: frozenset[str]) -> Module:
    """The module of an entry of modules.json or of a Router's file."""
    entry = Settings(path, fields if isinstance(fields, dict) else {}, allowed)
    class_path, place, _ = entry.get("type"), entry.get("path"), entry.get("name")
    if not isinstance(class_path, str) or not isinstance(place, str):
        raise ModelUnavailable(f"{path}: a module without type or path")
    refuse_unread(entry, MODULE)
    inside = PurePosixPath(place)
    if inside.is_absolute() or ".." in inside.parts or any(character in place for character in "\\:\0"):
        raise ModelUnavailable(f"{path}: a module's path leads out of the folder")
    package, _, kind = class_path.rpartition(".")
    if not (_PACKAGE.fullmatch(package) or _FURTHER_CLASS.fullmatch(class_path)) and "type" not in allowed:
        raise ModelUnavailable(
            f"{path}: type {class_path[:80]!r} of the module {place[:80]!r} is not a class of sentence-transformers; "
            f"{OPTION} type computes it as the class of that name"
        )
    if kind not in _KINDS:
        raise ModelUnavailable(f"{path}: type {kind[:60]!r} is not supported; supported are {', '.join(_KINDS)}")
    if kind.endswith("Transformer"):
        kind = "Transformer"
    elif kind in ("SSE", "SSEQ"):
        kind = STATIC_MODULE
    return Module(kind, path.parent / inside, allowed, class_path)


# --- after pooling --------------------------------------------------------------------------------------------


def read_after_pooling(module: Module) -> DenseModule | NormModule | None:
    """Return a module over sentence embeddings; None for one of another kind."""
    match module.kind:
        case "Dense":
            return read_dense(module, over="sentence_embedding")
        case "LayerNorm":
            config = module.read_config()
            dimension = config.whole("dimension", most=WIDTH_LIMIT)
            refuse_unread(config, {})
            return NormModule(folder=module.folder, weights=_weights_of(module), in_features=dimension)
        case "Normalize":
            check_normalize(module, over="sentence_embedding")
            return NormModule(folder=module.folder)
        case _:
            return None


def _weights_of(module: Module) -> Path:
    files = find_weights(module.folder)
    if len(files) > 1:
        raise ModelUnavailable(
            f"{module.folder}: the weights of a {module.kind} module must be in one file, not in {len(files)}"
        )
    return files[0]


def read_dense(module: Module, *, over: str, to: str | None = None) -> DenseModule:
    """Return the linear layer and its weight file.

    over: the required input, "sentence_embedding" or "token_embeddings". Folders written before version 5.4 do not name
    their input. to: the required output; None: the name of the input.
    """
    config = module.read_config()
    refuse_null(config, "in_features out_features bias activation_function")
    _check_names(config, over, to)
    if module.class_path.startswith("pylate.") and (over != "token_embeddings" or "activation_function" not in config):
        raise ModelUnavailable(
            f"{config.path}: a Dense module of pylate (type in modules.json) must have an activation_function and may "
            "not follow a Pooling"
        )
    path = config.get("activation_function", "torch.nn.Tanh")
    if "activation_function" in config.allowed:
        path = "torch.nn.Tanh"  # the default of a module without the key
    activation = read_activation(config, "activation_function", path, DENSE_ACTIVATIONS)
    if over == "token_embeddings" and activation == "softmax":  # torch's is over the batch
        raise ModelUnavailable(f"{config.path}: activation_function {activation} before pooling is not supported")
    dense = DenseModule(
        folder=module.folder,
        weights=_weights_of(module),
        in_features=config.whole("in_features", most=WIDTH_LIMIT),
        out_features=config.whole("out_features", most=WIDTH_LIMIT),
        bias=config.flag("bias", True),
        activation=activation,
        residual=config.flag("use_residual", False) or None,
    )
    if activation == "glu" and (dense.out_features % 2 or dense.residual):
        raise ModelUnavailable(f"{config.path}: activation_function GLU needs an even out_features and no use_residual")
    refuse_unread(config, {})
    return dense


def check_normalize(module: Module, *, over: str) -> None:
    """Raise ModelUnavailable if a Normalize module has another input or output than `over`, or an unknown setting."""
    config = read_settings(module.folder / "config.json", optional=True, allowed=module.allowed)
    _check_names(config, over)
    if over != "sentence_embedding" and "module_input_name" not in config:
        raise ModelUnavailable(f"{config.path}: module_input_name is missing; it must be {over} at this place")
    refuse_unread(config, {})


def _check_names(config: Settings, over: str, to: str | None = None) -> None:
    refuse_null(config, "module_input_name")
    config.one_of("module_input_name", (None, over))
    config.one_of("module_output_name", (None, over) if to is None else (to,))


def pooled_width(width: int, pooling: ModelPooling) -> int:
    """Return the width after a pooling; several poolings' vectors are laid end to end."""
    return width * (1 if isinstance(pooling, str) else len(pooling))


def chain_width(width: int, modules: Collection[DenseModule | NormModule]) -> int:
    """Return the width after the modules."""
    for module in modules:
        if module.in_features not in (None, width):
            raise ModelUnavailable(f"{module.folder}: its dimension {module.in_features} does not fit {width} numbers")
        width = module.width or width
    return width
