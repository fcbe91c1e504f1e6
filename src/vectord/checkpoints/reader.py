"""The facts of one model, read once from its folder: `read_spec(located) -> ModelSpec`.

Called at start, in the loading thread; tokenizer, backend and engine are made from the result. Opens JSON files and the
headers of small heads, and samples the rest for the fingerprint. Nothing in the folder is executed or imported,
`auto_map` least of all.

    open_folder ─▶ find_kind ─▶ what every model has ─▶ what its kind adds ─▶ fingerprint
                                (below)                 embedding, colbert,
                                                        splade, classifier, yes_no
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vectord.checkpoints.fingerprint import fingerprint
from vectord.checkpoints.hub import Located
from vectord.checkpoints.kinds.classifier import add_classifier
from vectord.checkpoints.kinds.colbert import add_colbert, keeps_own_lengths
from vectord.checkpoints.kinds.embedding import add_embedding
from vectord.checkpoints.kinds.kind import Kind, Task, find_kind
from vectord.checkpoints.kinds.splade import add_splade
from vectord.checkpoints.kinds.yes_no import add_judge
from vectord.checkpoints.lengths import read_max_tokens
from vectord.checkpoints.model_folder import ModelFolder, open_folder
from vectord.checkpoints.prompts import choose_default, read_prompts
from vectord.checkpoints.spec import ModelSpec, Pooling
from vectord.checkpoints.weight_files import find_weight_files
from vectord.errors import ConfigError, ModelUnavailable


def read_spec(
    located: Located,
    *,
    pooling: Pooling | None = None,
    default_prompt_name: str | None = None,
    task: Task = "auto",
) -> ModelSpec:
    """Everything the rest of the process must know of the model in `located.folder`.

    pooling, default_prompt_name: the operator's, instead of the model's own; task: what the model is wanted for, auto
    being what it was made for. Raises ModelUnavailable, naming the file, for what is missing, contradictory or not
    supported; ConfigError for a prompt name or a task that the model does not have.
    """
    folder = open_folder(located)
    kind = find_kind(folder, task)
    spec = _add_kind(folder, _common_facts(folder, located, default_prompt_name), kind, pooling)
    if task == "rerank" and kind == "classify" and not spec.reranks:
        raise ConfigError(f"task rerank: {folder.root} gives {len(spec.labels)} labels, and a reranker gives one")
    return replace(spec, fingerprint=fingerprint(spec))


def _common_facts(folder: ModelFolder, located: Located, default_prompt_name: str | None) -> ModelSpec:
    """What every kind has; outputs, and all that belongs to one, are still missing."""
    prompts = read_prompts(folder)
    return ModelSpec(
        model_id=located.model_id,
        revision=located.revision,
        folder=located.folder,
        config=folder.config,
        model_type=folder.model_type,
        architecture=_architecture(folder),
        weights=find_weight_files(folder.transformer),
        tokenizer=_tokenizer(folder),
        lowercase=folder.transformer_module.get("do_lower_case") is True,
        outputs=frozenset(),
        hidden_size=_hidden_size(folder),
        max_tokens=read_max_tokens(folder, max_seq_length_counts=not keeps_own_lengths(folder)),
        prompts=prompts,
        default_prompt_name=choose_default(folder, prompts, default_prompt_name),
        known_cosines=_known_cosines(folder, located),
        fingerprint="",
    )


def _add_kind(folder: ModelFolder, spec: ModelSpec, kind: Kind, pooling: Pooling | None) -> ModelSpec:
    match kind:
        case "embed":
            return add_embedding(folder, spec, pooling)
        case "colbert":
            return add_colbert(folder, spec)
        case "splade":
            return add_splade(folder, spec)
        case "classify":
            return add_classifier(folder, spec)
        case "judge":
            return add_judge(folder, spec)


# --- what every kind has --------------------------------------------------------------------------------------

_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # bert and most; distilbert; t5; gpt2 and nomic
_WIDTH_LIMIT = 2**17
# Of these a tokenizer can be made from vocab.txt alone (wordpiece.py).
_WORDPIECE = frozenset({"bert", "distilbert"})


def _architecture(folder: ModelFolder) -> str:
    """Whose network this is. Jina's says bert, and is another one."""
    if folder.model_type == "bert" and folder.config.get("position_embedding_type") == "alibi":
        return "jina_bert_v2"
    return folder.model_type


def _known_cosines(folder: ModelFolder, located: Located) -> tuple[tuple[str, str, float], ...]:
    """The catalogue's; of a local folder none, which may hold other weights under a known name."""
    return () if folder.entry is None or located.source == "folder" else folder.entry.known_cosines


def _hidden_size(folder: ModelFolder) -> int:
    inner = folder.config.get("text_config")  # of models that also see
    for config in (folder.config, inner if isinstance(inner, dict) else {}):
        for key in _WIDTHS:
            size = config.get(key)
            if type(size) is int and 0 < size <= _WIDTH_LIMIT:
                return size
    raise ModelUnavailable(f"{folder.config_path}: hidden_size is missing or not a sensible number")


def _tokenizer(folder: ModelFolder) -> Path:
    path = folder.transformer / "tokenizer.json"
    if path.is_file():
        return path
    words = folder.transformer / "vocab.txt"
    if folder.model_type in _WORDPIECE and words.is_file():
        return words
    raise ModelUnavailable(
        f"{folder.transformer}: no tokenizer.json; transformers' AutoTokenizer makes it from the model's other files, "
        "and its save_pretrained writes it"
    )
