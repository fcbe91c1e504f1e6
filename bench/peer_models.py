"""The models and texts of `make bench-peers`, and the files that its peers read. Nothing is downloaded."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from bench.child import REPOSITORY
from bench.corpus import Corpus, make_corpus
from bench.large import corpus_lengths
from vectord.checkpoints.hub import resolve
from vectord.config import DEFAULT_MODEL

MODELS = ("minilm", "mpnet", "bge-m3-shape", "mixed", "long", "reranker")  # mixed: bge-small's shape; long: BGE-M3's
FILES = REPOSITORY / "models/peers"  # converted models, kept between runs
LARGE = REPOSITORY / "models/bench"  # of bench.large too
QUERY = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"  # 12 tokens with the special ones
Load = tuple[int, int]  # connections, texts per request


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    name: str
    folder: Path
    corpus: Corpus
    texts: int  # of a round, unless the command line says otherwise
    limit_s: float  # of one load in a round, after its first responses
    server_loads: Sequence[Load]
    query: str | None = None  # of a reranker
    beside: Corpus | None = None  # single texts, which a server also answers while others send those of `corpus`

    @property
    def pooling(self) -> str:
        """infinity reads it from the command line: "mean" or "cls"."""
        file = self.folder / "1_Pooling/config.json"
        is_mean = file.exists() and json.loads(file.read_text()).get("pooling_mode_mean_tokens")
        return "mean" if is_mean else "cls"

    def library_loads(self, texts: int) -> list[Load]:
        """One call with all texts, which is the only one of a reranker; 32 texts a call; one text a call."""
        return [(1, texts)] if self.query else list(dict.fromkeys([(1, texts), (1, min(32, texts)), (1, 1)]))

    def corpus_file(self, folder: Path) -> Path:
        """The texts, for bench.peer_child."""
        file = folder / "peer-corpus.json"
        file.write_text(json.dumps({"texts": self.corpus.texts, "query": self.query}))
        return file

    def files(self, form: str, python: str | Path = sys.executable) -> Path:
        """The folder of the model in a format of bench.peer_files; empty: its own. Converted once, by `python`.

        Raises CalledProcessError, whose stderr has the reason.
        """
        if not form:
            return self.folder
        target = FILES / self.folder.name / form.replace(" ", "-")
        done = target.with_name(f"{target.name}.written")
        if not done.exists():
            print(f"writing {target} (once)", file=sys.stderr)
            shutil.rmtree(target, ignore_errors=True)  # of a failed conversion
            target.parent.mkdir(parents=True, exist_ok=True)
            argv = [str(python), "-m", "bench.peer_files", form, str(self.folder), str(target)]
            subprocess.run(argv, check=True, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
            done.touch()
        return target


def peer_model(name: str) -> PeerModel:
    """Exits with an instruction if the weights of `mpnet` are missing."""
    if name in ("minilm", "mpnet"):
        folder = resolve(DEFAULT_MODEL, offline=True).folder
        if name == "mpnet":
            folder = REPOSITORY / ".venv-tools/real/all-mpnet-base-v2"
            if not folder.exists():
                sys.exit("the weights of mpnet are missing: `make .venv-tools/real/.unpacked` downloads them (420 MB)")
        return PeerModel(
            name=name,
            folder=folder,
            corpus=make_corpus(folder / "tokenizer.json"),
            texts=1024 if name == "minilm" else 256,
            limit_s=10.0,
            server_loads=[(32, 1), (1, 1), (8, 16)],
        )
    from bench import random_models  # noqa: PLC0415 - imports torch

    if name == "reranker":
        folder = random_models.bge_reranker(LARGE / "bge-reranker-v2-m3")
    elif name == "mixed":
        folder = random_models.bert(LARGE / "bge-small", random_models.BGE_SMALL)
    else:
        folder = random_models.bge_m3(LARGE / "bge-m3")
    lengths = {"mixed": [10 + 490 * i // 31 for i in range(32)], "long": [8192]}.get(name) or corpus_lengths(1024)
    random.Random(0).shuffle(lengths)
    return PeerModel(
        name=name,
        folder=folder,
        corpus=invented_corpus(folder / "tokenizer.json", lengths),
        texts={"reranker": 100, "long": 1}.get(name, 32),
        limit_s=300.0 if name == "long" else 60.0,
        server_loads={"reranker": [(1, 100)], "long": []}.get(name, [(8, 1), (1, 1)]),
        query=QUERY if name == "reranker" else None,
        beside=invented_corpus(folder / "tokenizer.json", [12] * 32) if name == "mixed" else None,
    )


def invented_corpus(tokenizer_file: Path, lengths: Sequence[int]) -> Corpus:
    """Texts of the words of bench.random_models, one of each length in tokens."""
    chosen = random.Random(0)
    texts = [
        " ".join(f"w{chosen.randrange(100_000)}" for _ in range(length - 2))  # two special tokens
        for length in lengths
    ]
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    return Corpus(texts, [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)])
