"""`python -m bench images`: photographs in process and over HTTP, next to sentence-transformers; decoding apart.

Models have random weights in the shapes named, written once. Rounds of all systems alternate. Each image is a JPEG
photograph of 640 x 480 pixels, and none repeats. The server is that of the environment that runs this, with Pillow.
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
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bench.random_models import DONE
from bench.report import Row, at_least
from bench.server_process import Server, free_port
from bench.soak import request
from vectord import Embedder
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.schema import Media, TextOptions
from vectord.text.images import ImageEncoder
from vectord.text.sequence import ReadRequest

SIZE = (640, 480)
PER_REQUEST, CONNECTIONS = 16, 2
FASTER, SHARE_OF_PROCESS = 3.0, 0.9  # targets: in process, than sentence-transformers; over HTTP, of in process
WORDS = 1000  # of the texts, which are not measured

Encode = Callable[[Sequence[bytes]], Any]


def measure(folder: Path, names: Sequence[str], count: int, rounds: int) -> Mapping[str, Mapping[str, list[float]]]:
    """By model and system, the images a second of each round. folder: for the models."""
    return {name: _measure(write(folder / name, name), count, rounds) for name in names or SHAPES}


def _measure(folder: Path, count: int, rounds: int) -> dict[str, list[float]]:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - a peer is imported where it runs

    print(folder.name, file=sys.stderr)
    files, found = photographs(count), dict[str, list[float]]()
    peer = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    spec = read_spec(resolve(str(folder))).images
    assert spec is not None and spec.processor is not None
    encoder = ImageEncoder(spec.processor)
    with Embedder(str(folder), offline=True, cache_bytes=0) as embedder, tempfile.TemporaryDirectory() as logs:
        port = free_port()
        command = [str(Path(sys.executable).with_name("vectord")), "serve", str(folder), "--port", str(port)]
        with Server([*command, "--cache-bytes", "0"], port, Path(logs) / "vectord.log") as server:
            server.wait_until_answering(question=request([data_uri(files[0])], model=folder.name))
            systems: dict[str, Encode] = {
                "decoding": lambda files: encoder.read(
                    ReadRequest(inputs=[*map(Media, files)], options=TextOptions(), truncate=True)
                ),
                "vectord": lambda files: embedder.embed([*files]),
                "vectord over HTTP": lambda files: post(port, files),
                "sentence-transformers": lambda files: peer.encode([Image.open(io.BytesIO(file)) for file in files]),
            }
            for encode in systems.values():
                encode(files[: 2 * PER_REQUEST])  # warm
            for _ in range(rounds):
                for name, encode in systems.items():
                    began_s = time.perf_counter()
                    encode(files)
                    found.setdefault(name, []).append(len(files) / (time.perf_counter() - began_s))
    return found


def post(port: int, files: Sequence[bytes]) -> None:
    """Embed the images over HTTP, PER_REQUEST a request, on CONNECTIONS connections."""
    bodies = [
        json.dumps({"input": [*map(data_uri, part)]}).encode()
        for part in (files[i : i + PER_REQUEST] for i in range(0, len(files), PER_REQUEST))
    ]

    def send(mine: Sequence[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        for body in mine:
            connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"answered {response.status}: {response.read()[:300]!r}")
            response.read()
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(send, [bodies[i::CONNECTIONS] for i in range(CONNECTIONS)]))


def data_uri(file: bytes) -> str:
    return f"data:image/jpeg;base64,{b64encode(file).decode()}"


def photographs(count: int) -> list[bytes]:
    """JPEG files of soft random colours with noise, about as large as photographs."""
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            SIZE, Image.Resampling.BICUBIC
        )
        noise = rng.normal(0, 6, (SIZE[1], SIZE[0], 3))
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
        faster = best["vectord"] / best["sentence-transformers"]
        share = best["vectord over HTTP"] / best["vectord"]
        table += [
            Row(
                what=f"{model}, than sentence-transformers",
                value=f"{faster:.2f} x",
                **at_least(faster, FASTER, " x"),
            ),
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
    SHAPES[name](folder)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1, **{f"w{i}": i + 2 for i in range(WORDS - 2)}}, "<end>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<end>", padding_side="right"
    )
    tokenizer.save_pretrained(folder)
    (folder / DONE).touch()
    return folder


def _clip(folder: Path) -> None:
    config = transformers.CLIPConfig(
        text_config={"vocab_size": WORDS, "eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={"image_size": 224, "patch_size": 32},
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor().save_pretrained(folder)


def _siglip(folder: Path) -> None:
    config = transformers.SiglipConfig(
        text_config={"vocab_size": WORDS, "eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={"image_size": 224, "patch_size": 16},
    )
    transformers.SiglipModel(config).save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": 224, "width": 224}).save_pretrained(folder)


SHAPES: Mapping[str, Callable[[Path], None]] = {"clip-vit-base-patch32": _clip, "siglip2-base-patch16-224": _siglip}
