"""The facts of one model as plain values: `ModelSpec`.

reader.py makes it from a model's folder. Tokenizer, network, backend and engine are made from it, and none of them
opens a JSON file of the model again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from vectord.schema import AnswerKind, TextOptions  # which imports numpy

Pooling = Literal["cls", "mean", "last", "max", "mean_sqrt_len", "weighted_mean"]
# Several: end to end; attention: the architecture has a head of its own for it.
ModelPooling: TypeAlias = Pooling | tuple[Pooling, ...] | Literal["attention"]
# Activation functions of torch.nn, with the values that they have without arguments. The softmax is over a row.
ScoreActivation = Literal["identity", "sigmoid", "tanh", "relu", "gelu", "silu", "softmax"]
DenseActivation = Literal[ScoreActivation, "prelu", "glu"]  # with a weight of its own; of half the layer's width

# Architectures whose activations overflow float16.
NEVER_FLOAT16 = frozenset(
    {"bigemma3_text", "embedding_gemma2", "embedding_gemma2_text", "gemma2", "gemma3_text", "gemma4_vision"}
    | {"mt5", "t5", "t5gemma2_decoder", "t5gemma2_encoder"}
)
# Architectures that `auto` computes in float32. Their attention scores are not divided by the root of the heads' width,
# so they may be large: with transformers' random weights, rounding only the word vectors to bfloat16 leaves a cosine of
# 0.71, and no single op is the cause of the rest. No trained weights have been compared yet.
FLOAT32_BY_DEFAULT = frozenset({"embedding_gemma2", "embedding_gemma2_text", "gemma4_vision"})
PROMPT_LIMIT_CHARACTERS = 20_000
PromptText = Annotated[str, Meta(max_length=PROMPT_LIMIT_CHARACTERS)]

# The outputs of a network, for T tokens of N texts with M pooled spans (usually one per text):
#   dense    (M, D)  one vector per text, not normalized
#   tokens   (T, H)  the last hidden states
#   colbert  (T, C)  one vector per token, each of length 1
#   lexical  (T, 1)  the weight of each token, at least 0 (BGE-M3)
#   splade   (M, V)  the largest logit of each word of the vocabulary; with sums_words its weight
#   scores   (M, L)  logits: one per label; for a yes-or-no model, one per answer
#   markers  (M, D)  a listwise reranker's states at its markers
#   token_scores  (T, L)  logits of each token: one per label
Output = Literal["dense", "tokens", "colbert", "lexical", "splade", "scores", "markers", "token_scores"]
_KINDS: Mapping[Output, AnswerKind] = {
    "dense": "dense",
    "tokens": "tokens",
    "colbert": "colbert",
    "lexical": "sparse",
    "splade": "sparse",
    "scores": "scores",
    "markers": "scores",
    "token_scores": "token_scores",
}


class RequestedModel(msgspec.Struct, frozen=True):
    """A model that the operator requests, in a setting or in the catalogue file, with what the settings say of it."""

    model: str  # a folder, a package, a hub id
    name: str | None = None  # the operator's name for it, if its files have another
    handler: str | None = None  # the operator's own class, module.Class
    pooling: Pooling | None = None  # overrides the model's own
    served_name: str = ""
    aliases: tuple[str, ...] = ()  # further names clients may use
    pinned: bool = False  # loaded at start and never unloaded to make room
    adapters: tuple[tuple[str, Path], ...] = ()  # their names and folders


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A model's files on this machine."""

    folder: Path  # or a GGUF file, which contains them all
    model_id: str  # the hub id or package as the operator named it; for a local folder its last name, not its path
    revision: str | None  # the commit, if the source knows one
    source: Literal["folder", "package", "cache"]  # cache: the Hugging Face cache, also after a download
    base: Located | None = None  # of a folder with only an adapter: the model that it changes


class DenseModule(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer after the network or after pooling (sentence-transformers and pylate `Dense`)."""

    folder: Path
    weights: Path  # the file with linear.weight (and linear.bias)
    in_features: int
    out_features: int
    bias: bool = False
    activation: DenseActivation = "identity"
    layer: str | None = None  # the name of its weight (and bias) in the file; None: linear
    residual: bool | None = None  # whether the input is added, through a layer of its own if the widths differ

    @property
    def width(self) -> int:
        """Of its output."""
        return self.out_features // 2 if self.activation == "glu" else self.out_features


class NormModule(msgspec.Struct, frozen=True, kw_only=True):
    """A norm after pooling: sentence-transformers `LayerNorm`, or without weights `Normalize` before other modules."""

    folder: Path
    weights: Path | None = None  # the file with norm.weight and norm.bias; None: each vector gets length 1
    in_features: int | None = None  # None: any

    @property
    def width(self) -> int | None:
        return self.in_features


class TokenPooling(msgspec.Struct, frozen=True, kw_only=True):
    """sentence-transformers' HierarchicalTokenPooling, after all other modules."""

    factor: float
    protected_tokens: int
    normalizes: bool
    tasks: tuple[str, ...]


class Colbert(msgspec.Struct, frozen=True, kw_only=True):
    """How a ColBERT model makes its vectors, and how queries and documents are presented to it."""

    dimensions: int = 0
    dense_modules: tuple[DenseModule, ...] = ()  # pylate
    linear: Path | None = None  # BGE-M3's colbert_linear.pt
    drops_first: bool = False  # BGE-M3: the vector of CLS is left out
    query_prefix: str = ""  # a token inserted after the first one
    document_prefix: str = ""
    query_length: int | None = None  # maximum tokens of a query, specials included; None: max_tokens
    document_length: int | None = None
    expand_queries: bool = False  # fill a query with mask tokens up to query_length
    expansion_length: int | None = None  # or up to this, with room for longer queries
    expansion_token: str | None = None  # in place of the mask token
    attend_to_expansion: bool = False  # whether those tokens are attended to
    query_suffix: str | None = None  # tokens after a query, which are never cut
    framed: bool | None = None  # False: prompts and `query_suffix` have all special tokens of a text
    skiplist_words: tuple[str, ...] = ()  # tokens of documents whose vectors are left out
    skiplist_tasks: tuple[str, ...] = ()  # the texts from which they are left out, where not only documents
    kept_tokens: tuple[int, ...] = ()  # of documents, only the vectors of these tokens count
    token_pooling: TokenPooling | None = None
    library: Literal["pylate", "colbert-ai"] | None = None  # that saved it, where its rules for texts differ


class PassageRows(msgspec.Struct, frozen=True, kw_only=True):
    """How a passage is read apart from the query, by an encoder whose states become rows of the query's text."""

    text: str  # with the place {document}; tokenized without special tokens
    pooled: int  # so many of its tokens make a row, their mean
    max_query_tokens: int


class YesNo(msgspec.Struct, frozen=True, kw_only=True):
    """A language model that scores a passage by its next word, such as "no" or "yes". Its input: prefix, body, suffix.

    The body has the places {instruction}, {query} and {document}. As one string it is tokenized as a whole; of a tuple,
    each part is tokenized alone, query and document are in two of them, and the instruction may be missing.
    """

    prefix: str
    body: str | tuple[str, ...]
    suffix: str
    instruction: str = ""  # used if the request has none
    instruction_form: str = "{instruction}"  # what replaces the place of an instruction that is not empty
    answers: tuple[str, ...] = ("no", "yes")  # the words; of one word, the logit itself is the score
    divisor: float = 1.0  # of the score before the sigmoid
    token_ids: tuple[int, ...] | None = None  # of the answers; None: a classifier gives the score
    shares_prefix: bool = True  # whether the tokens that all pairs begin with run once; only in causal models
    passages: PassageRows | None = None  # None: the body has the place {document}

    @property
    def reads_instruction(self) -> bool:
        return any("{instruction}" in part for part in (self.body if isinstance(self.body, tuple) else (self.body,)))


class Listwise(msgspec.Struct, frozen=True, kw_only=True):
    """A language model that reads a query and a list of passages as one text, with a marker after each of them.

    The text: prefix, opening, the passages with `between` after each one, closing. A passage's score is the cosine of
    its marker's state with the query's, both after `ModelSpec.dense_modules`.
    """

    prefix: str
    opening: str  # with the places {count}, {query} and {instruction}
    instruction_form: str = "{instruction}"  # what replaces the place of an instruction that is not empty
    passage: str  # with the places {number}, from 0, and {document}
    between: str
    closing: str  # with the place {query}
    markers: tuple[str, str]  # the tokens after a passage and after the query
    max_query_tokens: int
    max_passage_tokens: int
    max_passages: int = 125  # of a text; a longer list has several, and the mean of their queries' states


class ChatTemplate(msgspec.Struct, frozen=True):
    """A Jinja template that turns messages into one text. Only text/chat_template.py runs it."""

    text: str
    tokens: Mapping[str, str]  # the special tokens that it may name, such as bos_token


class StaticTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table with a row for each token. A text's vector is the mean of its tokens' rows."""

    tensor: str  # the name of the table (rows, D)
    bends: bool | None = None  # SSE: the mean becomes dyt.beta * tanh(dyt.alpha * mean + dyt.bias)
    unknown_id: int | None = None  # the token that does not count; None: every token counts
    truncates_known: bool = False  # whether unknown tokens are left out before a long text is truncated
    max_characters: int | None = None  # of a text, where the library truncates before it tokenizes


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A low-rank change of the network (LoRA)."""

    name: str
    prompt: str = ""  # before each text, unless the request sets another
    scale: float  # of the change: alpha / rank, or alpha / sqrt(rank)
    rank: int
    weights: Path | None = None  # peft's file; None: the tensors are among the model's own
    base: str | None = None  # the model that it was trained for, by its adapter_config.json
    own_scales: tuple[tuple[str, int, float], ...] = ()  # of some layers, named as in the file: their ranks and scales
    dora: bool | None = None  # whether each row of the sum gets a length of the file's
    whole_modules: tuple[str, ...] = ()  # ends of the names of modules that the file has whole


# These count positions from pad_token_id + 1, so the first rows of the table belong to no token.
POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})
PAD_TOKEN_ID = 1  # where their config.json has none; MPNet's class uses it always
# Their classifiers read the last token that is not padding, even if the text itself ends with that token.
CLASSIFY_BEFORE_PADDING = frozenset(
    {"gemma", "gemma2", "gemma3_text", "llama", "ministral3", "mistral", "qwen2", "qwen3"}
)


class Tiling(msgspec.Struct, frozen=True, kw_only=True):
    """How Idefics3's processor divides an image: into square tiles, with a view of the whole image after them."""

    longest_edge: int  # to which the image is resized first
    side: int  # of a tile


class FreeSize(msgspec.Struct, frozen=True, kw_only=True):
    """An image of any size becomes whole blocks of patches, in about its ratio and with an area within limits."""

    min_pixels: int
    max_pixels: int
    side: int | None = None  # of the network's square table of positions; None: it has none
    window_blocks: int | None = None  # blocks of the side of a window, which have adjacent rows; None: line by line
    # Whether a side of at most half a block counts as none when the area is compared, as in transformers' processor.
    rounds_to_none: bool | None = None
    before: tuple[int, int] | None = None  # limits of pixels within which images are resized first, as by GME's script


class ImageProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """How an image becomes the rows of its network: resized, cut in the middle, and divided into square patches."""

    resize: int | tuple[int, int] = 0  # to this shorter side, or to this height and width
    resample: int  # Pillow's number of the filter
    crop: tuple[int, int] = (0, 0)  # height and width
    patch: int  # its side
    class_token: bool  # whether a row without a patch comes first
    merge: int | None = None  # the side of a block of patches that becomes one row of a text; None: images stay alone
    tiling: Tiling | None = None  # None: an image is one view, all of it
    # An image keeps its ratio and has at most so many patches: in whole blocks, each patch with its line and column; or
    # without `merge`, as NaFlex, with its places in lines and columns of any length. None: `free`, or the fixed sizes.
    most_patches: int | None = None
    free: FreeSize | None = None  # needs `merge`

    @property
    def row_width(self) -> int:
        """The numbers of a patch, 0 to 255: by channel, and in each from the upper left."""
        return 3 * self.patch**2

    @property
    def rows(self) -> int:
        """Of an image; of any ratio, the most."""
        if self.free is not None:
            return self.free.max_pixels // self.patch**2
        if self.most_patches is not None:
            return self.most_patches
        return self.crop[0] // self.patch * (self.crop[1] // self.patch) + self.class_token


class ImageText(msgspec.Struct, frozen=True, kw_only=True):
    """How an image is written into the text that a network reads, with tokens for the rows of the image's network."""

    token: str  # for each row of a view; the image's rows take the place of its word vector
    view: str = "{rows}"  # the whole image, with the place {rows} of its tokens
    tile: str = ""  # a tile, with the places {row} and {column} too, from 1; the whole image follows all tiles
    around: str = "{image}"  # the words around an image
    framed: bool | None = None  # False: `around` has all special tokens of the text
    alone: bool = True  # whether an image is an input alone, without texts, other images and prompts


class InputTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The words around every input of a language model that reads images."""

    text: str  # with the places {prompt} and {input}, and for pairs {query}
    prompt: str  # of requests without one
    keeps_prompt: bool | None = None  # whether one of a request stays unchanged, without a full stop


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    model_id: str  # as the operator named it
    revision: str | None  # the commit, if the source knows one
    folder: Path
    config: Mapping[str, Any]  # config.json, unchanged; only networks/ interprets it
    model_type: str  # config.json's
    architecture: str  # an entry of ARCHITECTURES in networks/; usually model_type
    weights: tuple[
        Path, ...
    ]  # safetensors, torch or GGUF files in order, or an ONNX graph and the files of its tensors
    others: tuple[str, ...] = ()  # beginnings of the names of tensors in these files that another network reads
    tokenizer: Path  # tokenizer.json, vocab.txt of a BERT without one, a GGUF file, or the settings of images
    lowercase: bool = False  # whether texts are lowercased before the tokenizer's own normalization
    removes_punctuation: bool | None = None  # and whether ASCII punctuation and further white space are removed
    outputs: frozenset[Output]  # of its network
    hidden_size: int
    max_tokens: int  # specials included
    # dense, and scores of a CrossEncoder of modules
    pooling: ModelPooling | None = None  # None: the model does not embed
    include_prompt: bool = True  # whether pooling includes the prompt's tokens
    dense_modules: tuple[DenseModule | NormModule, ...] = ()  # after pooling, in order; or after a list's markers
    dimensions: int = 0  # of the dense vector, after dense_modules
    truncate_dim: int | None = None  # the dimensions of requests that name none; None: all
    whole_numbers: bool | None = None  # whether the dense vector is 127 times its tanh, rounded (pplx-embed)
    matryoshka: tuple[int, ...] | None = None  # dimensions that it was trained to be cut to; (): none; None: unknown
    static: StaticTable | None = None  # None: a network computes the vectors
    # sparse and ColBERT
    lexical: Path | None = None  # BGE-M3's sparse_linear.pt
    log_twice: bool | None = None  # SPLADE: a weight is log(1 + log(1 + x)) instead of log(1 + x)
    sums_words: bool | None = None  # SPLADE: a word's weight is the sum over the tokens, not that of its largest logit
    query_weights: Path | None = None  # the weight of each token of a query, which needs no network; None: it needs one
    colbert: Colbert | None = None
    query: ModelSpec | None = None  # the network of queries, of a model with two; None: this one reads them too
    query_by_default: bool | None = None  # of a model with both: whether texts without a kind are queries
    # The network of images, of a model with one; with yes_no.passages, that of passages. It makes dense vectors alone.
    images: ModelSpec | None = None
    image_text: ImageText | None = None  # with `images`: those vectors are rows of texts; None: vectors of their own
    template: InputTemplate | None = None  # None: an input is its prompt and itself
    coordinates: int | None = None  # columns of PackedTexts.coordinates; None: none
    processor: ImageProcessor | None = None  # of a network of images; None: it reads texts
    filling: tuple[int, int] | None = None  # fills every text, unmasked: a token and a length (SigLIP); None: none
    names_kinds: bool = False  # "query" and "document" are prompt names even without such prompts: the two differ
    # scores
    labels: tuple[str, ...] = ()  # one a score, in order
    token_labels: tuple[str, ...] = ()  # one a score of a token, in order
    score_activation: ScoreActivation = "identity"  # that the model itself applies to its logits
    yes_no: YesNo | None = None
    listwise: Listwise | None = None
    caps_query: bool | None = None  # of a pair that does not fit, the query gets at most three quarters (FlagEmbedding)
    # prompts
    prompts: Mapping[str, str] = {}
    default_prompt_name: str | None = None
    merged: Adapter | None = None  # of a folder of peft's: it changes every text, so it is added to the weights
    adapters: tuple[Adapter, ...] = ()  # chosen by requests
    default_adapter: str | None = None  # for texts of requests that choose none; None: the network unchanged
    chat_template: ChatTemplate | None = None
    known_cosines: tuple[tuple[str, str, float], ...] = ()  # two texts and their published cosine
    handler: str | None = None  # module.Class of the operator's own class that computes the dense vectors
    fingerprint: str  # 16 hex digits over weights, pooling, heads, prompts (fingerprint.py)

    @property
    def skipped_id(self) -> int | None:
        """The padding token of a network whose positions skip it, in any place of a text; None: positions skip nothing.

        Source: create_position_ids_from_input_ids of transformers' RoBERTa and MPNet.
        """
        if self.model_type not in POSITIONS_AFTER_PAD or self.config.get("position_embedding_type") == "rotary":
            return None
        pad = self.config.get("pad_token_id")
        return pad if type(pad) is int and pad >= 0 and self.model_type != "mpnet" else PAD_TOKEN_ID

    @property
    def unscored_id(self) -> int | None:
        """The token that a classifier skips at the end of a text: a decoder's padding token; None: it skips none.

        Source: GenericForSequenceClassification of transformers. A graph does this itself, and the words around a
        yes-or-no reranker's pairs end otherwise.
        """
        is_classifier = "scores" in self.outputs and self.yes_no is None and not self.scores_by_modules
        reads_last = self.model_type in CLASSIFY_BEFORE_PADDING and is_classifier
        is_graph = any(path.suffix == ".onnx" for path in self.weights)
        pad = self.config.get("pad_token_id")
        return pad if reads_last and not is_graph and type(pad) is int else None

    def is_query(self, options: TextOptions) -> bool:
        """Return whether such texts are queries, of a model that reads those in another way."""
        by_default = self.query_by_default is True and options.kind is None and options.prompt_name != "document"
        return options.is_query or by_default

    @property
    def kinds(self) -> dict[AnswerKind, Output]:
        """The kinds of answers that the model can give, each with the output of the network that it is made of."""
        return {_KINDS[output]: output for output in self.outputs}

    @property
    def widths(self) -> dict[Output, int]:
        """The row width of each output, except splade's, which is the size of the vocabulary."""
        return {
            "dense": self.dimensions,
            "tokens": self.hidden_size,
            "colbert": self.colbert.dimensions if self.colbert is not None else 0,
            "lexical": 1,
            "scores": self.scores_width,
            "markers": (self.dense_modules[-1].width if self.dense_modules else None) or self.hidden_size,
            "token_scores": len(self.token_labels),
        }

    @property
    def tensors_of_heads(self) -> frozenset[str]:
        """Tensors in the body's files that heads read: of modules, and of a classifier of tokens."""
        token_layers = frozenset({"classifier.weight", "score.weight", "head.dense.weight"})
        return self.tensors_of_modules | (token_layers if "token_scores" in self.outputs else frozenset())

    @property
    def tensors_of_modules(self) -> frozenset[str]:
        """Of Dense modules, as in voyage-4-nano, Stanford's ColBERT and models of pages."""
        modules = (*self.dense_modules, *(() if self.colbert is None else self.colbert.dense_modules))
        dense = [module for module in modules if isinstance(module, DenseModule) and module.weights in self.weights]
        parts = {module.layer or "linear": ("weight", "bias")[: 1 + module.bias] for module in dense}
        return frozenset(f"{layer}.{part}" for layer, own in parts.items() for part in own)

    @property
    def pooling_name(self) -> str:
        """The names of its poolings, joined by +; empty if the model does not embed."""
        return self.pooling if isinstance(self.pooling, str) else "+".join(self.pooling or ())

    @property
    def usual_dimensions(self) -> int:
        """The dimensions of requests that name none."""
        return min(self.dimensions, self.truncate_dim or self.dimensions)

    def cut(self, dimensions: int | None) -> int | None:
        """How many leading numbers of a vector are kept for a request of these dimensions; None: all."""
        return self.truncate_dim if dimensions is None else dimensions

    def width_of_space(self, dimensions: int | None) -> str:
        """What follows the fingerprint in the name of a space with this many dimensions; None: the usual ones."""
        width = self.usual_dimensions if dimensions is None else dimensions
        return "" if width == self.dimensions else f":{width}"

    @property
    def scores_by_words(self) -> bool:
        """Whether the scores are the logits of words, such as "no" and "yes", not one per label."""
        return self.yes_no is not None and self.yes_no.token_ids is not None

    @property
    def scores_by_modules(self) -> bool:
        """Whether the scores come from Dense modules after a pooling, not from the architecture's classifier."""
        return "scores" in self.outputs and bool(self.dense_modules)

    @property
    def scores_width(self) -> int:
        """How many logits a text or pair gets."""
        return len(self.labels) if self.yes_no is None else len(self.yes_no.token_ids or self.labels)

    @property
    def feature_width(self) -> int:
        """The width of the rows from outside that its network takes: pixels, or the vectors of `images`; 0: none."""
        if self.processor is not None:
            return self.processor.row_width
        places = self.image_text if self.yes_no is None else self.image_text or self.yes_no.passages
        return 0 if self.images is None or places is None else self.images.dimensions

    @property
    def reads_images(self) -> bool:
        return self.images is not None and self.images.processor is not None

    @property
    def reranks(self) -> bool:
        """Whether the scores rate a passage for a query: one label, yes and no, or markers."""
        return self.yes_no is not None or self.listwise is not None or len(self.labels) == 1
