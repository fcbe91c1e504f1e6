"""Static models: a table of token vectors without a network (model2vec, sentence-transformers' StaticEmbedding).

A folder with a config.json is model2vec's. The libraries differ, and the one that saved the folder decides:

    sentence-transformers   counts every token; truncates as tokenizer.json says
    model2vec 0.10          leaves out unknown tokens; truncates to `max_length`, first by characters
    model2vec up to 0.9     writes no `max_length`: 512; counts the unknown token of a Unigram tokenizer, and leaves out
                            those of others before it truncates
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.config_keys import harmless, refuse_unread
from vectord.checkpoints.files.read import Settings
from vectord.checkpoints.folder import ModelFolder, wrong_order
from vectord.checkpoints.kinds.embedding import matryoshka_of, truncate_dim_of
from vectord.checkpoints.spec import ModelSpec, Pooling, StaticTable
from vectord.checkpoints.vocabulary import read_vocabulary
from vectord.errors import ConfigError, ModelUnavailable

MAX_TOKENS = 512  # model2vec's default
UNLIMITED_TOKENS = 32_768  # where the library truncates nothing

_BEND = ("dyt.alpha", "dyt.beta", "dyt.bias")  # of the module SSE

# model2vec's keys of config.json. Most describe how the table was made, and the tensors show the rest; `normalize` is
# the request's choice here.
_KEYS = harmless(
    "how the table was made, or read here",
    "apply_pca apply_zipf architectures embedding_dtype hidden_dim matryoshka_dimensions max_length model_type "
    "normalize pooling seq_length sif_coefficient tokenizer_name vocabulary_quantization",
)


def add_static(folder: ModelFolder, spec: ModelSpec, pooling: Pooling | None) -> ModelSpec:
    """Add the table's name and shape, and the library's rules. pooling: the operator's choice."""
    if pooling not in (None, "mean"):
        raise ConfigError(f"pooling {pooling}: {folder.root} is a static model, whose vectors are means")
    if [module.kind for module in folder.modules[1:]] not in ([], ["Normalize"]):
        raise wrong_order(folder.root, folder.modules, supported="StaticEmbedding, Normalize")
    refuse_unread(folder.config, _KEYS)
    bends = bool(folder.modules) and folder.modules[0].class_path.endswith(("SSE", "SSEQ"))
    tensor, ids, dimensions = _shapes(spec, _BEND if bends else ())
    table, max_tokens = _rules(folder, StaticTable(tensor=tensor, bends=bends or None), spec)
    return replace(
        spec,
        config={**folder.config.fields, "vocab_size": ids},
        outputs=frozenset({"dense"}),
        pooling="mean",
        static=table,
        hidden_size=dimensions,
        dimensions=dimensions,
        truncate_dim=truncate_dim_of(folder),
        max_tokens=max_tokens,
        matryoshka=matryoshka_of(folder, dimensions),
    )


def _shapes(spec: ModelSpec, vectors: Collection[str]) -> tuple[str, int, int]:
    """The table's name, how many token ids have a row, and its columns. vectors: tensors with a number for each."""
    tensors = open_checkpoint(spec.weights)
    shapes = {name: weight.shape for name, weight in tensors.items()}
    tensors.close()
    name = next((name for name in ("embedding.weight", "embeddings") if name in shapes), "")
    path = spec.weights[0]
    if len(shapes.get(name, ())) != 2 or not all(shapes[name]):
        raise ModelUnavailable(f"{path}: no table named embeddings or embedding.weight with rows and columns")
    # sentence-transformers applies them to `embeddings`, as model2vec names the table, and ignores them otherwise.
    further = {"weights", "mapping"} if name == "embeddings" else set()
    if others := sorted(shapes.keys() - {name, *vectors} - further):
        raise ModelUnavailable(f"{path}: a static model has no tensor {others[0][:60]!r}")
    rows, dimensions = shapes[name]
    if wrong := next((vector for vector in vectors if shapes.get(vector) != (dimensions,)), None):
        raise ModelUnavailable(f"{path}: {wrong} must have {dimensions} numbers, as many as the table has columns")
    ids = shapes.get("mapping", (rows,))
    if len(ids) != 1 or shapes.get("weights", ids) != ids:
        raise ModelUnavailable(f"{path}: mapping and weights must have one number for each token")
    return name, ids[0], dimensions


def _rules(folder: ModelFolder, table: StaticTable, spec: ModelSpec) -> tuple[StaticTable, int]:
    """The rules of the library and version that saved the folder, and the limit in tokens."""
    tokens, tokenizer = read_vocabulary(spec.tokenizer)
    own = tokenizer.get("truncation")  # of the tokenizer itself; model2vec 0.10 replaces it
    if not tokens or not isinstance(own, dict | None):
        raise ModelUnavailable(f"{spec.tokenizer}: no tokens, or truncation is not an object")
    own_limit = UNLIMITED_TOKENS
    if own is not None:
        own_limit = Settings(spec.tokenizer, own).whole("max_length", most=UNLIMITED_TOKENS)
        if own.get("direction", "Right") != "Right":
            raise ModelUnavailable(f"{spec.tokenizer}: truncation on the left is not supported")
        # The tokenizer would fail for each long text with the second of two texts, or with a stride as long as a text.
        stride = own.get("stride", 0)
        if own.get("strategy") == "OnlySecond" or type(stride) is not int or not 0 <= stride < own_limit:
            raise ModelUnavailable(
                f"{spec.tokenizer}: truncation must have strategy LongestFirst and a stride below max_length"
            )
    if not folder.config.path.is_file():
        return table, own_limit
    is_new = "max_length" in folder.config.fields
    name, place = tokenizer["model"].get("unk_token"), tokenizer["model"].get("unk_id")
    unknown = tokens.get(name) if isinstance(name, str) else place if is_new and isinstance(place, int) else None
    if is_new and folder.config.get("max_length") is None:
        return replace(table, unknown_id=unknown), UNLIMITED_TOKENS
    limit = folder.config.whole("max_length", MAX_TOKENS, most=UNLIMITED_TOKENS)
    from statistics import median  # noqa: PLC0415 - 4 ms of every start

    characters = limit * int(median(map(len, tokens)))
    if is_new or own_limit <= limit:
        return replace(table, unknown_id=unknown, max_characters=characters), limit if is_new else own_limit
    return replace(table, unknown_id=unknown, max_characters=characters, truncates_known=True), limit
