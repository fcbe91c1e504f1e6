"""`vectord embed` and `rerank`: the vectors and scores of a few texts, without a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import orjson

from vectord.cli.commands import JSON, command_with_settings, configure_log, load_settings
from vectord.cli.printing import print_json, print_table, print_text, printable
from vectord.config import Config
from vectord.config.command_line import flag, pass_command_line, value
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError, ExitCode, VectordError

HELP = """\
Print the vector of each TEXT: a line of JSON with its numbers. Without a TEXT, each line of standard input is one. The
model runs in this process and is loaded for each call; vectord bulk embeds files, and vectord serve answers programs.
Accepts the options of `vectord serve`, such as --model and --device, and their environment variables.

With --similar, print the cosine of the first TEXT and each other one, the most similar first.

\b
Exit codes:
  0  the vectors were printed
  1  a text was refused, or the model cannot be loaded
  2  a bad option, or no text

\b
Examples:
  vectord embed "That is a happy person"
  vectord embed --similar "That is a happy person" "That is a glad person" "It rains"
  vectord embed --model BAAI/bge-small-en-v1.5 < sentences.txt > vectors.jsonl"""

RERANK_HELP = """\
Print the score of each TEXT for QUERY, the best one first. Without a TEXT, each line of standard input is one. A model
that is no reranker compares its vectors. The model runs in this process. Accepts the options of `vectord serve`, such
as --model and --device, and their environment variables.

\b
Exit codes:
  0  the scores were printed
  1  a text was refused, or the model cannot be loaded
  2  a bad option, or no text

\b
Examples:
  vectord rerank "happy" "rain" "joy" "a glad person"
  vectord rerank "how to renew a certificate" --top-n 3 --model BAAI/bge-reranker-base < paragraphs.txt"""


@command_with_settings(
    help=HELP,
    short_help="Print the vectors of texts, or their similarity.",
    params=[
        click.Argument(["texts"], nargs=-1, metavar="[TEXT]..."),
        flag("--similar", help="Compare the first text with the others."),
        JSON,
    ],
)
@pass_command_line
def command(line: CommandLine, texts: Sequence[str], similar: bool, as_json: bool) -> int:
    from vectord.schema import EmbedRequest, best_first  # noqa: PLC0415 - imported on use

    texts = texts or _lines()
    if similar and len(texts) < 2:
        raise ConfigError("--similar: expected two texts or more")
    result = _answer(line, EmbedRequest(inputs=texts))
    if result is None:
        return ExitCode.FAILED
    vectors = result.dense["float"]
    if similar:
        cosines = vectors[1:] @ vectors[0]
        order = best_first(cosines, None).tolist()
        return _print_scores(result, [(i + 1, float(cosines[i]), texts[i + 1]) for i in order], as_json)
    if as_json:
        answer = {"model": result.model, "fingerprint": result.fingerprint, "embeddings": vectors}
        return print_text(_json_of(answer))
    return print_text("\n".join(map(_json_of, vectors)))


@command_with_settings(
    help=RERANK_HELP,
    short_help="Print the scores of texts for a query.",
    params=[
        click.Argument(["query"]),
        click.Argument(["texts"], nargs=-1, metavar="[TEXT]..."),
        value("--top-n", "N", "Print only the best N.", kind=click.IntRange(1)),
        JSON,
    ],
)
@pass_command_line
def rerank_command(line: CommandLine, query: str, texts: Sequence[str], top_n: int | None, as_json: bool) -> int:
    from vectord.schema import RerankRequest, best_first  # noqa: PLC0415 - imported on use

    texts = texts or _lines()
    result = _answer(line, RerankRequest(query=query, passages=texts))
    if result is None:
        return ExitCode.FAILED
    order = best_first(result.scores, result.logits)[:top_n].tolist()
    return _print_scores(result, [(i, float(result.scores[i]), texts[i]) for i in order], as_json)


def _json_of(answer: Any) -> str:
    """With the digits that float32 has."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _lines() -> list[str]:
    """Standard input, by line. Raises ConfigError if there is none: a terminal would wait without a word."""
    texts = [] if sys.stdin.isatty() else sys.stdin.read().splitlines()
    if not texts:
        raise ConfigError("expected a TEXT, or lines on standard input; see --help")
    return texts


def _answer(line: CommandLine, request: Any) -> Any:
    """The result of a request to an engine of its own. None if it is refused, which is printed."""
    try:
        loaded = load_settings(line)
        configure_log(loaded)
        loaded.log_notes()
        return asyncio.run(_ask(loaded.config, request))
    except VectordError as error:
        if error.field in ("inputs", "passages"):
            error = error.at(field="TEXT", index=error.index)
        click.echo(f"vectord: {error.message}", err=True)
        return None


async def _ask(config: Config, request: Any) -> Any:
    from vectord.compose import running_engine  # noqa: PLC0415 - imported on use
    from vectord.schema import Caller  # noqa: PLC0415

    async with running_engine(config) as engine:
        return await engine.answer(request, Caller(client="command", route="command"))


def _print_scores(result: Any, scored: Iterable[tuple[int, float, str]], as_json: bool) -> int:
    """Exit code 0. scored: index, score and text of each, in the order of printing."""
    if as_json:
        scores = [{"index": index, "score": score, "text": text} for index, score, text in scored]
        return print_json({"model": result.model, "results": scores})
    return print_table((f"{score:.4f}", printable(text)) for _, score, text in scored)
