"""sentence-transformers and FlagEmbedding on the same weights and texts, as their users call them. A section of gpu.py.

Every round includes tokenization, as a request over HTTP does. On a GPU they use 16 bits; their default, float32, would
not be comparable. Imports only files of bench.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.gpu_options import ROUNDS, Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import Shape, model_folder, shape_named

LENGTHS = (16, 512)
BATCH_TEXTS = (32, 256)  # the library's default, and one that suits a large GPU
CALL_TOKENS = 2**17  # in one call
FLAG_BATCH_TEXTS = 256  # FlagEmbedding's default


def sentence_transformers(options: Options, found: Say) -> None:
    from sentence_transformers import SentenceTransformer, __version__  # noqa: PLC0415

    dtype = "float32" if options.device == "cpu" else "bfloat16"
    found("peer", name="sentence-transformers", version=__version__, dtype=dtype)
    for name in options.models:
        shape = shape_named(name, quick=options.quick)
        folder = str(model_folder(shape, options.models_folder, quick=options.quick))
        model = SentenceTransformer(folder, device=options.device, model_kwargs={"dtype": dtype})
        for length in LENGTHS:
            texts = _texts(shape, length, options)
            for batch in BATCH_TEXTS:
                how = f"sentence-transformers, {batch} texts per batch"

                def encode(texts: Sequence[str] = texts, batch: int = batch, model: Any = model) -> object:
                    return model.encode(list(texts), batch_size=batch, show_progress_bar=False)

                with attempt(found, f"{name}, {length} tokens, {how}"):
                    _rate(encode, shape, length, len(texts), how, options, found)


def flag_embedding(options: Options, found: Say) -> None:
    from importlib.metadata import version  # noqa: PLC0415

    from FlagEmbedding import BGEM3FlagModel  # noqa: PLC0415

    found("peer", name="FlagEmbedding", version=version("FlagEmbedding"), dtype="float16")
    (name,) = options.models
    shape = shape_named(name, quick=options.quick)
    folder = str(model_folder(shape, options.models_folder, quick=options.quick))
    device = "cuda:0" if options.device == "cuda" else options.device
    model = BGEM3FlagModel(folder, use_fp16=device != "cpu", devices=device)
    for length in LENGTHS:
        texts = _texts(shape, length, options)
        for what, three in (("dense", False), ("three vectors", True)):
            how = f"FlagEmbedding, {what}"

            def encode(texts: Sequence[str] = texts, three: bool = three) -> object:
                return model.encode(list(texts), batch_size=FLAG_BATCH_TEXTS, max_length=shape.longest,
                                    return_sparse=three, return_colbert_vecs=three)  # fmt: skip

            with attempt(found, f"{name}, {length} tokens, {how}"):
                _rate(encode, shape, length, len(texts), how, options, found)


def _texts(shape: Shape, length: int, options: Options) -> list[str]:
    count = 32 if options.quick else CALL_TOKENS // length
    return [shape.text(min(length, shape.longest), seed) for seed in range(count)]


def _rate(
    encode: Callable[[], object], shape: Shape, length: int, texts: int, how: str, options: Options, found: Say
) -> None:
    """The median of at least ROUNDS calls within a round's time."""
    length = min(length, shape.longest)
    encode()
    rates: list[float] = []
    until_s = time.perf_counter() + options.round_s
    while len(rates) < ROUNDS or time.perf_counter() < until_s:
        began_s = time.perf_counter()
        encode()
        rates.append(texts * length / (time.perf_counter() - began_s))
    found("rate", model=shape.name, how=how, length=length, texts=texts, tokens_per_s=statistics.median(rates),
          rounds=rates, flop_per_token=shape.flop_per_token(length))  # fmt: skip


PEERS = {"sentence-transformers": sentence_transformers, "FlagEmbedding": flag_embedding}

if __name__ == "__main__":
    found, peer = speaker(), sys.argv[1]
    try:
        PEERS[peer](read_options(), found)
    except ImportError as error:
        found("absent", what=peer, error=str(error))
