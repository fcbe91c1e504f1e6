"""The measured vectord: its command, options and texts. Made once, in the parent process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bench.corpus import Corpus, make_corpus
from bench.server_process import Server, free_port
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.config import DEFAULT_MODEL

CHECKED_TEXTS = 64


@dataclass(frozen=True, slots=True)
class Subject:
    """`folder` has the files that the processes of a run share: the corpus and the logs."""

    command: Path  # the `vectord` of an environment without torch, as users install it
    backend: str
    dtype: str
    folder: Path
    corpus: Corpus
    model_folder: Path
    tokenizer_file: Path

    @property
    def corpus_file(self) -> Path:
        return self.folder / "corpus.json"

    @property
    def in_process_arguments(self) -> tuple[str, ...]:
        return self.backend, self.dtype, str(self.corpus_file)

    def start_server(self, *options: str) -> Server:
        """With default settings but without the cache, which would answer repeated texts."""
        port = free_port()
        serve = [str(self.command), "serve", "--port", str(port), "--cache-bytes", "0"]
        chosen = ["--backend", self.backend, "--dtype", self.dtype]
        return Server([*serve, *chosen, *options], port, self.folder / "vectord.log")

    def check(self, server: Server) -> None:
        """Raises RuntimeError if the tokens in the server's usage differ from the corpus's."""
        some = self.corpus.first(CHECKED_TEXTS)
        _, billed = server.embed(some.texts)
        if billed != some.tokens:
            raise RuntimeError(f"the server read {billed} tokens where the corpus has {some.tokens}")


def make_subject(command: Path, backend: str, dtype: str, folder: Path) -> Subject:
    """Reads the default model's files and makes the corpus, which takes some seconds."""
    spec = read_spec(resolve(DEFAULT_MODEL, offline=True))
    corpus = make_corpus(spec.tokenizer)
    subject = Subject(command, backend, dtype, folder, corpus, spec.folder, spec.tokenizer)
    subject.corpus_file.write_text(json.dumps({"texts": corpus.texts, "ids": corpus.ids}))
    return subject
