"""ColBERT models, which have one vector per token. reader.py calls `add_colbert` at start. Three ways to save one:

    pylate                 Transformer, Dense ...; settings in config_sentence_transformers.json
    MultiVectorEncoder     Transformer, Dense ..., MultiVectorMask, Normalize, HierarchicalTokenPooling
                           (sentence-transformers 6; mask and pooling are optional)
    Stanford               no modules.json; linear.weight among the weights, settings in artifact.metadata

pylate and Stanford insert a token after the first one. MultiVectorEncoder puts a prompt before the text, which is the
same if the prompt is an added token.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from vectord.checkpoints.checkpoint import find_tensor
from vectord.checkpoints.config_keys import refuse_null, refuse_unread
from vectord.checkpoints.files.read import Settings, read_settings
from vectord.checkpoints.folder import ModelFolder, Module, chain_width, check_normalize, read_dense, wrong_order
from vectord.checkpoints.spec import Colbert, DenseModule, ModelSpec, PromptText, TokenPooling
from vectord.checkpoints.vocabulary import read_vocabulary
from vectord.errors import ModelUnavailable

SKIPLIST_LIMIT = 10_000
LENGTH_LIMIT = 2**20
_Words = Annotated[tuple[str, ...], Meta(max_length=SKIPLIST_LIMIT)]
_Ids = Annotated[tuple[int, ...], Meta(max_length=SKIPLIST_LIMIT)]

# pylate's defaults, for folders written before it saved these settings.
_QUERY_LENGTH = 32
_DOCUMENT_LENGTH = 180
_PUNCTUATION = tuple(string.punctuation)
_ORDER = (
    "Transformer, Dense ... (pylate) or Transformer, Dense ..., MultiVectorMask, Normalize, HierarchicalTokenPooling"
)


def add_colbert(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Add the token vectors, and how queries and documents become tokens."""
    if not folder.modules:
        colbert = _stanford(folder, spec)
    elif folder.modules[-1].kind in ("Normalize", "HierarchicalTokenPooling"):
        colbert, spec = _prompts_to_tokens(spec, _multi_vector_encoder(folder))
    else:
        colbert = _pylate(folder)
    colbert = replace(colbert, dimensions=chain_width(spec.hidden_size, colbert.dense_modules))
    return replace(spec, outputs=frozenset({"colbert", "tokens"}), colbert=colbert)


def keeps_own_lengths(folder: ModelFolder) -> bool:
    """Return whether max_seq_length is meaningless: pylate overwrites it for every batch and saves the last value."""
    return bool(folder.modules) and {module.kind for module in folder.modules} == {"Transformer", "Dense"}


def _pylate(folder: ModelFolder) -> Colbert:
    config = folder.sentence
    expands = config.flag("do_query_expansion", True)
    attends = config.flag("attend_to_expansion_tokens", False)
    return Colbert(
        dense_modules=_dense(folder, folder.modules[1:]),
        query_prefix=config.value("query_prefix", PromptText, "[Q] "),
        document_prefix=config.value("document_prefix", PromptText, "[D] "),
        query_length=_length(config, "query_length", _QUERY_LENGTH),
        document_length=_length(config, "document_length", _DOCUMENT_LENGTH),
        expand_queries=expands,
        attend_to_expansion=expands and attends,
        skiplist_words=config.value("skiplist_words", _Words, _PUNCTUATION),
        library="pylate",
    )


def _dense(folder: ModelFolder, modules: Sequence[Module]) -> tuple[DenseModule, ...]:
    if any(module.kind != "Dense" for module in modules):
        raise wrong_order(folder.root, folder.modules, supported=_ORDER)
    return tuple(read_dense(module, over="token_embeddings") for module in modules)


# --- MultiVectorEncoder ---------------------------------------------------------------------------------------


def _multi_vector_encoder(folder: ModelFolder) -> Colbert:
    modules = list(folder.modules[1:])
    pooling = _token_pooling(modules.pop()) if modules[-1].kind == "HierarchicalTokenPooling" else None
    if modules[-1:] and modules[-1].kind == "Normalize":
        check_normalize(modules.pop(), over="token_embeddings")
    else:
        raise wrong_order(folder.root, folder.modules, supported=_ORDER)
    mask = modules.pop() if modules and modules[-1].kind == "MultiVectorMask" else None
    config = folder.transformer_module
    if config.get("max_seq_length") is not None and "max_seq_length" not in config.allowed:
        raise ModelUnavailable(f"{config.path}: max_seq_length is not supported next to query and document lengths")
    colbert = Colbert(
        dense_modules=_dense(folder, modules),
        query_length=_length(config, "query_length", None),
        document_length=_length(config, "document_length", None),
        token_pooling=pooling,
    )
    colbert = _with_expansion(colbert, config)
    if mask is None:
        return colbert
    config = mask.read_config()
    tasks, words = _tasks(config, "skiplist_tasks"), config.value("skiplist_words", _Words, ())
    colbert = replace(  # the tokens whose vectors count
        colbert,
        skiplist_words=words if tasks else (),
        skiplist_tasks=() if tasks == ("document",) else tasks,
        kept_tokens=config.value("keep_only_token_ids", _Ids, ()),
    )
    refuse_unread(config, {})
    return colbert


def _with_expansion(colbert: Colbert, config: Settings) -> Colbert:
    """With the tokens after a query: "fixed" up to a length that is also the longest, "min" up to the least length."""
    if (expansion := config.get("query_expansion")) is None:
        return colbert
    if not isinstance(expansion, dict) or not {"strategy", "length"} <= expansion.keys():
        raise ModelUnavailable(f"{config.path}: query_expansion must be an object with a strategy and a length")
    settings = config.of(expansion)
    fixed = settings.one_of("strategy", ("fixed", "min"), "fixed") == "fixed"
    length = settings.whole("length", least=3, most=LENGTH_LIMIT)
    if colbert.query_length is not None and colbert.query_length < length:
        raise ModelUnavailable(f"{config.path}: query_length must be at least the length of query_expansion, {length}")
    colbert = replace(
        colbert,
        query_length=length if fixed else colbert.query_length,
        expand_queries=True,
        expansion_length=None if fixed else length,
        expansion_token=settings.value("token", Annotated[str, Meta(max_length=1000)]),
        attend_to_expansion=settings.flag("attend", False),
    )
    refuse_null(settings, "attend strategy")
    refuse_unread(settings, {})
    return colbert


def _token_pooling(module: Module) -> TokenPooling:
    config = module.read_config()
    pooling = TokenPooling(
        factor=config.value("pool_factor", Annotated[float, Meta(ge=1)], 1.0),
        protected_tokens=config.value("num_protected_tokens", Annotated[int, Meta(ge=0)], 1),
        normalizes=config.flag("normalize_embeddings", False),
        tasks=_tasks(config, "tasks"),
    )
    refuse_null(config, "pool_factor num_protected_tokens normalize_embeddings")
    refuse_unread(config, {})
    return pooling


def _tasks(config: Settings, key: str) -> tuple[str, ...]:
    """The kinds of texts to which a module applies; others than queries and documents are never encoded."""
    tasks = config.value(key, str | _Words, ("document",))
    return tuple(sorted({"query", "document"} & {*((tasks,) if isinstance(tasks, str) else tasks)}))


def _prompts_to_tokens(spec: ModelSpec, colbert: Colbert) -> tuple[Colbert, ModelSpec]:
    """The prompts of queries and documents as inserted tokens, where the tokenizer has them as added tokens.

    A mere word of its vocabulary would join the text's first word.
    """
    prompts = {kind: spec.prompts.get(kind, "") for kind in ("query", "document")}
    if not any(prompts.values()):
        return colbert, spec
    added = {token["content"] for token in read_vocabulary(spec.tokenizer)[1].get("added_tokens") or ()}
    tokens = {kind: prompt for kind, prompt in prompts.items() if prompt in added}
    others = {name: prompt for name, prompt in spec.prompts.items() if name not in tokens}
    colbert = replace(colbert, query_prefix=tokens.get("query", ""), document_prefix=tokens.get("document", ""))
    default = spec.default_prompt_name if spec.default_prompt_name in others else None
    return colbert, replace(spec, prompts=others, default_prompt_name=default)


# --- Stanford -------------------------------------------------------------------------------------------------


def _stanford(folder: ModelFolder, spec: ModelSpec) -> Colbert:
    config = read_settings(folder.transformer / "artifact.metadata", optional=True, allowed=folder.allowed)
    # Of ColBERTConfig in the package colbert-ai, these and the keys below change vectors or their comparison.
    for key, usual in (("similarity", "cosine"), ("interaction", "colbert"), ("pool_factor", 1)):
        config.one_of(key, (None, usual))
    path, shape = find_tensor(spec.weights, "linear.weight") or (folder.transformer, ())
    if len(shape) != 2 or not min(shape):
        raise ModelUnavailable(f"{path}: a ColBERT model without a linear.weight of two dimensions")
    linear = DenseModule(folder=folder.transformer, weights=path, in_features=shape[1], out_features=shape[0])
    return Colbert(
        dense_modules=(linear,),
        query_prefix=config.value("query_token_id", PromptText, "[unused0]"),
        document_prefix=config.value("doc_token_id", PromptText, "[unused1]"),
        query_length=_length(config, "query_maxlen", _QUERY_LENGTH),
        document_length=_length(config, "doc_maxlen", _DOCUMENT_LENGTH),
        expand_queries=True,
        attend_to_expansion=config.flag("attend_to_mask_tokens", False),
        skiplist_words=_PUNCTUATION if config.flag("mask_punctuation", True) else (),
        library="colbert-ai",
    )


# --- single settings ------------------------------------------------------------------------------------------


def _length(config: Settings, key: str, default: int | None) -> int | None:
    """A maximum length in tokens, with room for specials, prefix and a token."""
    return default if config.get(key) is None else config.whole(key, least=3, most=LENGTH_LIMIT)
