"""`vectord embed` and `rerank`: the vectors and scores of a few texts or images, without a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson

from vectord.cli.commands import JSON, command_with_settings, configure_log, load_settings
from vectord.cli.printing import print_json, print_table, print_text, printable
from vectord.config import Config
from vectord.config.command_line import flag, pass_command_line, value
from vectord.config.sources import CommandLine
from vectord.errors import ConfigError, ExitCode, InvalidField, ModelCannot, VectordError

if TYPE_CHECKING:
    from vectord.engine.engine import Engine

T = TypeVar("T")

IMAGE_MODEL = "openai/clip-vit-base-patch32"

HELP = f"""\
Print the vector of each TEXT: a line of JSON with its numbers. Without a TEXT, each line of standard input is one. The
model runs in this process and is loaded for each call; vectord bulk embeds files, and vectord serve answers programs.
Accepts the options of `vectord serve`, such as --model and --device, and their environment variables.

With --similar, print the cosine of the first TEXT and each other one, the most similar first; of models with a vector
for each token or patch the sum of the best matches, and of sparse ones the dot product, with the first as the query.

A TEXT that is the path of an image or a PDF stands for its pictures, and a folder with a / at its end for those in it;
the model must be one that reads images, such as {IMAGE_MODEL}.

\b
Exit codes:
  0  the vectors were printed
  1  a text was refused, or the model cannot be loaded
  2  a bad option, or no text

\b
Examples:
  vectord embed "That is a happy person"
  vectord embed --similar "That is a happy person" "That is a glad person" "It rains"
  vectord embed --model BAAI/bge-small-en-v1.5 < sentences.txt > vectors.jsonl
  vectord embed --similar "a dog on a beach" pictures/ --model {IMAGE_MODEL}"""

RERANK_HELP = """\
Print the score of each TEXT for QUERY, the best one first. Without a TEXT, each line of standard input is one. A model
that is no reranker compares its vectors. A TEXT that is a path stands for images, as in vectord embed; models of pages
compare those by the vectors of their patches. The model runs in this process. Accepts the options of `vectord serve`,
such as --model and --device, and their environment variables.

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
    import numpy as np  # noqa: PLC0415 - imported on use

    from vectord.schema import EmbedRequest, best_first  # noqa: PLC0415 - imported on use

    items = _with_files(texts or _lines())
    if similar and len(items) < 2:
        raise ConfigError("--similar: expected two texts or more")
    if similar:
        result, scores, names = _answer(line, partial(_compare, items))
        order = best_first(scores, None).tolist()
        return _print_scores(result, [(i + 1, float(scores[i]), names[i]) for i in order], as_json)
    results, _ = _answer(line, partial(_ask_in_parts, items, lambda inputs: EmbedRequest(inputs=inputs)))
    result, vectors = results[-1], np.concatenate([each.dense["float"] for each in results])
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
    import numpy as np  # noqa: PLC0415 - imported on use

    from vectord.schema import RerankRequest, best_first  # noqa: PLC0415 - imported on use

    items = _with_files(texts or _lines())
    ask = partial(_ask_in_parts, items, lambda inputs: RerankRequest(query=query, passages=inputs))
    results, names = _answer(line, ask)
    scores = np.concatenate([result.scores for result in results])
    logits = None if results[0].logits is None else np.concatenate([result.logits for result in results])
    order = best_first(scores, logits)[:top_n].tolist()
    return _print_scores(results[0], [(i, float(scores[i]), names[i]) for i in order], as_json)


def _json_of(answer: Any) -> str:
    """With the digits that float32 has."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _lines() -> list[str]:
    """Standard input, by line. Raises ConfigError if there is none: a terminal would wait without a word."""
    data = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
    if not data:
        raise ConfigError("expected a TEXT, or lines on standard input; see --help")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"standard input: line {line} is not UTF-8") from None
    # Not splitlines: it also divides a text at a form feed or U+2028.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _with_files(texts: Sequence[str]) -> list[str | Path]:
    """The texts, with paths in place of those that name an image, a PDF, or with a / at the end a folder of these."""
    from vectord.bulk.inputs import MEDIA  # noqa: PLC0415 - imported on use

    items: list[str | Path] = []
    for text in texts:
        path = Path(text)
        if text.endswith("/") and path.is_dir():
            items += sorted(file for file in path.rglob("*") if file.suffix.lower() in MEDIA and file.is_file())
        else:
            items.append(path if path.suffix.lower() in MEDIA and path.is_file() else text)
    return items


async def _compare(items: Sequence[str | Path], engine: Engine) -> tuple[Any, Any, list[str]]:
    """The last result, the similarity of the first item to the others, and their names."""
    import numpy as np  # noqa: PLC0415 - imported on use

    from vectord.library.embedder import read_rows, rows_of  # noqa: PLC0415
    from vectord.schema import EmbedRequest, RerankRequest  # noqa: PLC0415

    kinds = frozenset().union(*(model.outputs for model in engine.models().models))
    if "dense" in kinds or not kinds:
        results, names = await _ask_in_parts(items, lambda inputs: EmbedRequest(inputs=inputs), engine)
        vectors = np.concatenate([each.dense["float"] for each in results])
        return results[-1], vectors[1:] @ vectors[0], names[1:]
    first, *others = items
    query = read_rows([first], rows_of([first])[:1])[0]
    results, names = await _ask_in_parts(others, lambda inputs: RerankRequest(query=query, passages=inputs), engine)
    return results[-1], np.concatenate([each.scores for each in results]), names


async def _ask_in_parts(
    items: Sequence[str | Path], request_of: Callable[[Sequence[Any]], Any], engine: Engine
) -> tuple[list[Any], list[str]]:
    """The results of requests for all texts and pages, and the name of each."""
    from vectord.library.embedder import IMAGES_PER_REQUEST, read_rows, rows_of  # noqa: PLC0415
    from vectord.schema import Caller  # noqa: PLC0415

    caller = Caller(client="command", route="command")
    rows = rows_of(items)
    is_text = all(isinstance(item, str) for item in items)
    size = engine.models().limits.max_inputs_per_request if is_text else IMAGES_PER_REQUEST
    results = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        try:
            results.append(await engine.answer(request_of(read_rows(items, part)), caller))
        except VectordError as error:
            read = {kind for model in engine.models().models for kind in model.modalities}
            if isinstance(error, InvalidField) and "image" not in read and any(isinstance(one, Path) for one in items):
                template = "a {field} is an image, and no model here reads images; choose one, such as --model {model}"
                raise ModelCannot(template, field="texts", model=IMAGE_MODEL) from error
            if error.index is None:
                raise
            raise error.at(index=part[error.index].index) from error.__cause__
    names = [f"{items[row.index]}{f', page {row.page}' if row.page else ''}" for row in rows]
    return results, names


def _answer(line: CommandLine, ask: Callable[[Engine], Awaitable[T]]) -> T:
    """What `ask` returns for an engine of its own. If it is refused, prints the reason and ends the command."""
    from vectord.compose import running_engine  # noqa: PLC0415 - imported on use

    async def answer(config: Config) -> T:
        async with running_engine(config) as engine:
            return await ask(engine)

    try:
        loaded = load_settings(line)
        configure_log(loaded)
        loaded.log_notes()
        return asyncio.run(answer(loaded.config))
    except ConfigError:
        raise
    except VectordError as error:
        if error.field in ("inputs", "texts", "passages"):
            error = error.at(field="TEXT", index=error.index)
        click.echo(f"vectord: {error.message}", err=True)
        raise click.exceptions.Exit(ExitCode.FAILED) from None


def _print_scores(result: Any, scored: Iterable[tuple[int, float, str]], as_json: bool) -> int:
    """Exit code 0. scored: index, score and text of each, in the order of printing."""
    if as_json:
        scores = [{"index": index, "score": score, "text": text} for index, score, text in scored]
        return print_json({"model": result.model, "results": scores})
    return print_table((f"{score:.4f}", printable(text)) for _, score, text in scored)
