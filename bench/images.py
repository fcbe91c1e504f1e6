"""`python -m bench images`: photographs in process and over HTTP, next to sentence-transformers and infinity; pages
next to transformers; decoding apart.

Models have random weights in the shapes named, written once. Rounds of all systems alternate. Each image is a JPEG
photograph of 640 x 480 pixels, or a page of 1448 x 2048, and none repeats. The server is that of the environment that
runs this, with Pillow.
"""

from __future__ import annotations

import http.client
import io
import json
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import numpy as np
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bench.http_load import HOST
from bench.peer_environments import peer_environment
from bench.random_models import DONE
from bench.report import Row, at_least
from bench.server_process import Server, free_port
from vectord import Embedder
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.schema import Media, TextOptions, VectorKind
from vectord.text.images import ImageEncoder, with_pixels
from vectord.text.sequence import ReadRequest

SIZE, PAGE = (640, 480), (1448, 2048)  # of a photograph; of a page, as the processor of pages scales it
PER_REQUEST, CONNECTIONS = 16, 2
PAGES = "colmodernvbert"
PAGES_A_ROUND = 2  # a page has 13 views of 1,024 patches
FASTER, SHARE_OF_PROCESS = 3.0, 0.9  # targets: in process, than the reference; over HTTP, of in process
REFERENCE, INFINITY = "sentence-transformers", "infinity, torch, over HTTP"
REFERENCE_OF_PAGES = "transformers"  # sentence-transformers does not read this model
START_S = 300.0  # of infinity, which runs its model a few times first
WORDS = 1000  # of the texts, which are not measured
TOKENS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "<|begin_of_text|>", "\n")

Encode = Callable[[Sequence[bytes]], Any]
Body = Callable[[Sequence[str]], Mapping[str, Any]]  # of a request, for images as data URIs


def measure(
    folder: Path, names: Sequence[str], count: int, rounds: int, *, install: bool
) -> Mapping[str, Mapping[str, list[float]]]:
    """By model and system, the images a second of each round. folder: for the models. install: infinity, if missing."""
    return {name: _measure(write(folder / name, name), count, rounds, install=install) for name in names or SHAPES}


def _measure(folder: Path, count: int, rounds: int, *, install: bool) -> dict[str, list[float]]:
    print(folder.name, file=sys.stderr)
    of_pages, found = folder.name == PAGES, dict[str, list[float]]()
    files = photographs(PAGES_A_ROUND, PAGE) if of_pages else photographs(count)
    spec = read_spec(resolve(str(folder))).images
    assert spec is not None and spec.processor is not None
    encoder = ImageEncoder(spec.processor)

    def decode(files: Sequence[bytes]) -> None:
        request = ReadRequest(inputs=[*map(Media, files)], options=TextOptions(), truncate=True)
        with_pixels(encoder.read(request))

    with ExitStack() as stack:
        embedder = stack.enter_context(Embedder(str(folder), offline=True, cache_bytes=0))
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [str(Path(sys.executable).with_name("vectord")), "serve", str(folder), "--port", "{port}"]
        outputs: VectorKind = "colbert" if of_pages else "dense"
        path, body = ("/vectord/embed", _body_of_pages) if of_pages else ("/v1/embeddings", _body)
        systems: dict[str, Encode] = {
            "decoding": decode,
            "vectord": lambda files: embedder.embed([*files], outputs=outputs),
            "vectord over HTTP": _over_http(stack, [*command, "--cache-bytes", "0"], logs, path, body, files[0]),
            **(_reference_of_pages(folder) if of_pages else _reference(folder)),
        }
        if not of_pages:
            systems |= _infinity(stack, folder, logs, files[0], install=install)
        for encode in systems.values():
            encode(files[: 2 * PER_REQUEST])  # warm
        for _ in range(rounds):
            for name, encode in systems.items():
                began_s = time.perf_counter()
                encode(files)
                found.setdefault(name, []).append(len(files) / (time.perf_counter() - began_s))
    return found


def _body(images: Sequence[str]) -> Mapping[str, Any]:
    return {"input": images}


def _body_of_pages(images: Sequence[str]) -> Mapping[str, Any]:
    return {"inputs": [{"image": image} for image in images], "outputs": ["colbert"], "encoding": "base64"}


def _reference(folder: Path) -> Mapping[str, Encode]:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - a peer is imported where it runs

    peer = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return {REFERENCE: lambda files: peer.encode([Image.open(io.BytesIO(file)) for file in files])}


def _reference_of_pages(folder: Path) -> Mapping[str, Encode]:
    import torch  # noqa: PLC0415 - a peer is imported where it runs

    model: Any = transformers.ColModernVBertForRetrieval.from_pretrained(folder)
    model.eval()
    processor: Any = transformers.ColModernVBertProcessor.from_pretrained(folder)

    def encode(files: Sequence[bytes]) -> None:
        for file in files:  # one by one: it would pad the views of each to those of the largest
            with torch.inference_mode():
                model(**processor.process_images(images=[Image.open(io.BytesIO(file))]))

    return {REFERENCE_OF_PAGES: encode}


def _infinity(stack: ExitStack, folder: Path, logs: Path, file: bytes, *, install: bool) -> Mapping[str, Encode]:
    """infinity's server; none, with the reason on standard error, if it cannot be installed or does not start."""
    try:
        program = peer_environment("infinity", install) / "infinity_emb"
        command = [str(program), "v2", "--model-id", str(folder), "--served-model-name", "model", "--device", "cpu"]
        command += [
            "--engine",
            "torch",
            "--host",
            HOST,
            "--port",
            "{port}",
            "--url-prefix",
            "/v1",
            "--dtype",
            "float32",
        ]
        body: Body = lambda images: {"model": "model", "input": images, "modality": "image"}  # noqa: E731
        return {INFINITY: _over_http(stack, command, logs, "/v1/embeddings", body, file)}
    except (RuntimeError, CalledProcessError) as reason:
        print(f"infinity has no row: {getattr(reason, 'stderr', None) or reason}", file=sys.stderr)
        return {}


def _over_http(stack: ExitStack, command: Sequence[str], logs: Path, path: str, body: Body, file: bytes) -> Encode:
    """Starts a server, and sends images PER_REQUEST a request, on CONNECTIONS connections. command: with {port}."""
    port = free_port()
    server = Server([word.format(port=port) for word in command], port, logs / f"{port}.log")
    stack.enter_context(server)

    def bodies(files: Sequence[bytes]) -> list[bytes]:
        parts = (files[i : i + PER_REQUEST] for i in range(0, len(files), PER_REQUEST))
        return [json.dumps(body([*map(data_uri, part)])).encode() for part in parts]

    (question,) = bodies([file])
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    server.wait_until_answering(START_S, f"{head}Content-Length: {len(question)}\r\n\r\n".encode() + question)
    return lambda files: post(port, path, bodies(files))


def post(port: int, path: str, bodies: Sequence[bytes]) -> None:
    """Raises RuntimeError for a status other than 200."""

    def send(mine: Sequence[bytes]) -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=600)
        for body in mine:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"answered {response.status}: {response.read()[:300]!r}")
            response.read()
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(send, [bodies[i::CONNECTIONS] for i in range(CONNECTIONS)]))


def data_uri(file: bytes) -> str:
    return f"data:image/jpeg;base64,{b64encode(file).decode()}"


def photographs(count: int, size: tuple[int, int] = SIZE) -> list[bytes]:
    """JPEG files of soft random colours with noise, about as large as photographs."""
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        noise = rng.normal(0, 6, (size[1], size[0], 3))
        file = io.BytesIO()
        Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
        files.append(file.getvalue())
    return files


def rows(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Row]:
    """Best rounds."""
    table = []
    for model, systems in found.items():
        best = {name: max(rates) for name, rates in systems.items()}
        table += [Row(what=f"{model}, {name}", value=f"{rate:,.1f} images/s") for name, rate in best.items()]
        reference = REFERENCE_OF_PAGES if model == PAGES else REFERENCE
        faster = best["vectord"] / best[reference]
        share = best["vectord over HTTP"] / best["vectord"]
        if INFINITY in best:
            beside = best["vectord over HTTP"] / best[INFINITY]
            table.append(Row(what=f"{model}, both over HTTP, than infinity", value=f"{beside:.2f} x"))
        table += [
            Row(what=f"{model}, than {reference}", value=f"{faster:.2f} x", **at_least(faster, FASTER, " x")),
            Row(
                what=f"{model}, over HTTP, of in process",
                value=f"{share:.2f}",
                **at_least(share, SHARE_OF_PROCESS, ""),
            ),
        ]
    return table


# --- models ---------------------------------------------------------------------------------------------------


def write(folder: Path, name: str) -> Path:
    """A model of transformers' class with random weights, unless it is there already."""
    if (folder / DONE).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    transformers.set_seed(0)
    vocabulary = {"<pad>": 0, "<end>": 1, **{f"w{i}": i + 2 for i in range(WORDS - 2)}}
    # A BPE with a suffix, and a list: transformers' CLIPTokenizerFast, which infinity loads, requires them.
    words = Tokenizer(models.BPE(vocabulary, [], unk_token="<end>", end_of_word_suffix="</w>", fuse_unk=True))
    words.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace()])
    words.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<end>", padding_side="right"
    )
    SHAPES[name](folder, tokenizer)
    tokenizer.save_pretrained(folder)
    (folder / DONE).touch()
    return folder


def _clip(folder: Path, tokenizer: Any) -> None:
    config = transformers.CLIPConfig(
        text_config={"vocab_size": WORDS, "eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={"image_size": 224, "patch_size": 32},
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor().save_pretrained(folder)


def _siglip(folder: Path, tokenizer: Any) -> None:
    config = transformers.SiglipConfig(
        text_config={"vocab_size": WORDS, "eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={"image_size": 224, "patch_size": 16},
    )
    transformers.SiglipModel(config).save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": 224, "width": 224}).save_pretrained(folder)


def _colmodernvbert(folder: Path, tokenizer: Any) -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil  # noqa: PLC0415

    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_tokens([*TOKENS, *tiles], special_tokens=True)
    side, merge, patch = 512, 4, 16
    config = transformers.ColModernVBertConfig(
        vlm_config={
            "model_type": "modernvbert",
            "text_config": {"model_type": "modernbert", "vocab_size": 50_368},
            "vision_config": {"model_type": "siglip_vision_model", "image_size": side, "patch_size": patch},
            "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
            "pixel_shuffle_factor": merge,
        }
    )
    transformers.ColModernVBertForRetrieval(config).save_pretrained(folder)
    images = Idefics3ImageProcessorPil(size={"longest_edge": max(PAGE)}, max_image_size={"longest_edge": side})
    rows = (side // patch // merge) ** 2
    transformers.ColModernVBertProcessor(images, tokenizer, image_seq_len=rows).save_pretrained(folder)


SHAPES: Mapping[str, Callable[[Path, Any], None]] = {
    "clip-vit-base-patch32": _clip,
    "siglip2-base-patch16-224": _siglip,
    PAGES: _colmodernvbert,
}
