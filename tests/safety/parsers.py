"""`PARSERS`: every parser of untrusted data, with inputs for it. test_fuzz.py runs them.

A parser may return a value or raise a VectordError; anything else is a defect. Inputs are generated in three ways: from
the expected type, by changing bytes of a valid input, and at random.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from hypothesis import strategies as st
from tests.checkpoints.files.onnx_bytes import external_tensor, field, graph, model, tensor
from tests.checkpoints.files.torch_files import PICKLED_FLOATS, map_bytes, pack, torch_members
from tests.checkpoints.folders import write_sentence_model, write_tokenizer
from tests.checkpoints.gguf.gguf_files import LEAST, bert_bytes
from tests.checkpoints.reading import spec_of
from tests.config.start import load
from tests.dialects import all_dialects
from tests.products.results import model_info
from tests.products.test_errors import RETRIED
from tests.server.fakes import FakeEngine
from tests.text.makers import make_spec

from vectord.checkpoints.catalogue_file import read_catalogue_file
from vectord.checkpoints.checkpoint import open_checkpoint
from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.files.torch_file import read_members, read_tensors
from vectord.checkpoints.gguf.model import read_model
from vectord.checkpoints.gguf.tokenizer import tokenizer_json
from vectord.checkpoints.vocabulary import find_ids, vocab_txt_json
from vectord.errors import VectordError
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Route
from vectord.schema import EmbedRequest, TextOptions
from vectord.server.admission.gate import TrustedProxies, caller_of, request_id
from vectord.server.admission.keys import Keys, read_keys
from vectord.server.grpc.messages import METHODS, Method
from vectord.server.grpc.streams import RankStream
from vectord.server.http.app import build_table
from vectord.server.http.hardening.body import check_media_type
from vectord.server.http.hardening.decompression import decompress
from vectord.server.http.negotiation import negotiated
from vectord.server.pipeline import Shutdown
from vectord.text.sequence import ReadRequest
from vectord.text.tokenizer import TextEncoder

Feed: TypeAlias = Callable[[Any, Path], object]  # an input, and a folder for the parser


@dataclass(frozen=True, slots=True)
class Parser:
    name: str
    inputs: st.SearchStrategy[Any]
    feed: Feed
    share: int = 1  # the share of all inputs; exposed and cheap parsers get more


def feed(parser: Parser, given: Any, folder: Path) -> bool:
    """True if the parser accepts the input, False for a VectordError. Other exceptions propagate."""
    try:
        parser.feed(given, folder)
    except VectordError as error:
        assert error.message, "an error without a word"
        return False
    return True


# --- inputs ---------------------------------------------------------------------------------------------------

_PIECES = [b"", b"\0", b"\xff" * 8, b"[" * 300, b'{"', b"\\ud800", b"1e999", b"-1", b"true", b"null", b"../", b"\r\n"]


@st.composite
def damaged(draw: st.DrawFn, *sound: bytes) -> bytes:
    """One of the `sound` inputs with bytes flipped, removed, repeated or truncated."""
    data = bytearray(draw(st.sampled_from(sound)))
    chance = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(chance.choice((0, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at : at + chance.choice((1, 4, 32))] = b""
            case 2:
                data[at:at] = data[at : at + chance.choice((1, 8, 64))]
            case 3:
                data[at:at] = chance.choice(_PIECES)
            case _:
                del data[at:]
    return bytes(data)


def texts_of(*words: str) -> st.SearchStrategy[str]:
    """Text of a small language: its words in any order, with any characters between them."""
    return st.lists(st.sampled_from(words) | st.text(max_size=3), max_size=16).map("".join)


_HEADERS = ("accept", "authorization", "x-api-key", "content-type", "content-encoding", "x-vectord-lane")
_HEADERS += ("x-vectord-expect-fingerprint", "x-request-id", "traceparent", "connection", "origin", "x-forwarded-for")
_VALUES = ("application/json", "application/octet-stream", ";dtype=", "int8")
_VALUES += (
    ";q=",
    "0.5",
    ",",
    "gzip",
    "Bearer ",
    "bulk",
    "interactive",
    "=",
    '"',
    "nan",
    "-1",
    "1e999",
    "00-",
    "10.0.0.1",
)
# Any bytes as latin-1, the encoding that handler.py uses.
_value = texts_of(*_VALUES).map(lambda text: text.encode().decode("latin-1"))
headers = st.dictionaries(st.sampled_from(_HEADERS), _value, max_size=6)


# --- what clients send ----------------------------------------------------------------------------------------

_DIALECTS = all_dialects()
MARK = "zq"  # in every string of the bodies, and in none of our messages
# One route of each parser.
PARSES = {
    (dialect.name, route.parse): (dialect, route) for dialect in _DIALECTS for route in dialect.routes if route.body
}


def keys_of(route: Route) -> list[str]:
    """Every key that the route's body may have, at any depth."""
    _, components = msgspec.json.schema_components([route.body])
    return sorted({key for component in components.values() for key in component.get("properties", {})})


def bodies(route: Route) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the keys that select the route and some of its others, with any JSON as values."""
    keys = st.sampled_from(keys_of(route))
    marked = st.text(max_size=4).map(lambda text: MARK + text)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | marked,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=10,
    )
    chosen = st.fixed_dictionaries(dict.fromkeys(sorted(route.required | route.one_of), values))
    return st.builds(lambda options, selecting: options | selecting, st.dictionaries(keys, values, max_size=3), chosen)


_TABLE = build_table(FakeEngine(), _DIALECTS, Shutdown(), None)
_EXAMPLES = [json.dumps(route.example).encode() for dialect in _DIALECTS for route in dialect.routes if route.example]
_PATHS = tuple({route.path for dialect in _DIALECTS for route in dialect.routes})


def _checked(render_error: Callable[[VectordError], Rendered], parse: Callable[[], Call], *, marked: bool) -> None:
    """Checks that a product renders a 4xx that repeats nothing from the request."""
    try:
        call = parse()
    except VectordError as error:
        rendered = render_error(error)
        assert 400 <= rendered.status < 500 and rendered.status not in RETRIED, rendered.status
        assert not (marked and MARK.encode() in rendered.body), "an error that echoes"
        raise
    assert isinstance(call, Call)


def _feed_route(dialect: Dialect, route: Route, body: Any, folder: Path) -> None:
    path = dict.fromkeys(re.findall(r"\{(\w+)", route.path), "a")
    given = Incoming(body=json.dumps(body).encode(), path=path, models=[model_info()])
    _checked(route.render_error or dialect.render_error, lambda: route.parse(given), marked=True)


def _feed_table(given: tuple[str, str, bytes, Mapping[str, str]], folder: Path) -> None:
    """The steps of handler.py without the engine."""
    method, path, content, said = given
    found = _TABLE.find(method, path)
    endpoint = found.endpoint
    if endpoint.error is not None:
        raise endpoint.error
    if endpoint.page is not None:
        endpoint.page.show(said)
        return
    _check_media_type(said)
    choice = endpoint.choose(content)
    asked = Incoming(body=content, path=found.values, headers=said, models=[model_info()])
    _checked(choice.render_error, lambda: negotiated(choice.route.parse(asked), said), marked=False)


def _feed_headers(said: Mapping[str, str], folder: Path) -> None:
    request_id(said)
    call = Call(EmbedRequest(inputs=["a"]), lambda result: Rendered(body=b""))
    for read in (
        _check_media_type,
        partial(negotiated, call),
        partial(caller_of, address="192.0.2.1"),
        partial(_check_key, Keys({"api_key": "key"}, "admin"), admin=False),
        partial(_check_key, Keys({"api_key": "key"}, "admin"), admin=True),
    ):
        try:
            read(said)
        except VectordError as error:
            assert error.message
    TrustedProxies(["10.0.0.0/8"]).client_of("10.0.0.2", [said.get("x-forwarded-for", "")])


def _check_media_type(said: Mapping[str, str]) -> None:
    check_media_type(said.get("content-type", ""))


def _check_key(keys: Keys, headers: Mapping[str, str], *, admin: bool) -> None:
    (keys.require_admin if admin else keys.require)(keys.lookup(headers), headers)


def _feed_compressed(given: tuple[str, bytes], folder: Path) -> None:
    encoding, content = given
    whole = asyncio.run(decompress(content, encoding, 4096, lambda n_bytes: None, asyncio.Semaphore()))
    assert len(whole) <= 4096


def _compressed() -> Iterator[bytes]:
    import gzip
    import zlib

    import zstandard

    for content in (b"", b'{"input": "a"}', bytes(100_000)):
        yield from (gzip.compress(content), zlib.compress(content), zstandard.compress(content))


def _messages() -> Iterator[bytes]:
    """Every message type, with and without each of its fields."""
    for method in METHODS:
        message = method.kind()
        yield message.SerializeToString()
        for one in method.kind.DESCRIPTOR.fields:
            value = {one.TYPE_STRING: "text", one.TYPE_BOOL: True}.get(one.type, 1)
            if one.type != one.TYPE_MESSAGE:
                repeated = isinstance(getattr(message, one.name), (list, tuple)) or hasattr(
                    getattr(message, one.name), "append"
                )
                getattr(message, one.name).append(value) if repeated else setattr(message, one.name, value)
        yield message.SerializeToString()


_KINDS = tuple({(method.kind, method.parse): method for method in METHODS}.values())


def _feed_message(given: tuple[Method, bytes], folder: Path) -> None:
    method, content = given
    method.read(content)


def _feed_rank_stream(contents: list[bytes], folder: Path) -> None:
    stream = RankStream(limit_bytes=4096)
    for content in contents:
        stream.begin(content)()


# --- what operators write -------------------------------------------------------------------------------------

_CATALOGUE = b"""models:
  - name: "bge-m3"
    hf_repo_id: "BAAI/bge-m3"
    handler: "app.models.bge_m3.BgeM3Embedding"
    pooling: "mean"
  - {hf_repo_id: a/b, name: c}
"""
_CONFIG = (
    b'profile = "tei"\n[server]\nport = 80\nhost = "0.0.0.0"\n[engine]\ncache_bytes = 1\n[model]\nmodels = ["a"]\n'
)
_KEYS = b'[[keys]]\nname = "a"\nsha256 = "%s"\nadmin = true\nmodels = ["m"]\nrequests_per_minute = 3\n' % (b"0" * 64)
_DOTENV = b"PORT=80\nAPI_KEY='a b'\nMODELS=a,b\nJSON_OUTPUT\nexport HOST=\"::1\"\n"
_ARGUMENTS = ("--port", "--models", "--dtype", "--no-", "--json-output", "=", "1", "-1", "true", "a/b", "--", "-p")


def _feed_config(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    try:
        load(["--env-compat", "--env-file", name] if name == ".env" else [], {}, folder)
    finally:
        (folder / name).unlink()


def _feed_file(read: Callable[[Path], object], name: str, content: bytes, folder: Path) -> None:
    path = folder / name
    path.write_bytes(content)
    path.chmod(0o600)
    read(path)


# --- what a model's folder holds ------------------------------------------------------------------------------


_GGUF = bert_bytes()
_OPTIONAL = ("general.alignment", "bert.classifier.output_labels", "tokenizer.ggml.cls_token_id", "general.name")
_GGUF_VALUES: st.SearchStrategy[Any] = st.booleans() | st.integers(0, 2**32 - 1) | st.floats(width=32) | st.text()
_GGUF_VALUES |= st.lists(st.text(), min_size=1) | st.lists(st.integers(-9, 9), min_size=1) | st.sampled_from([1, 4, 6])
_retyped = st.dictionaries(
    st.sampled_from((*LEAST, *_OPTIONAL)), _GGUF_VALUES | st.lists(st.booleans(), min_size=1), min_size=1, max_size=2
).map(bert_bytes)


def _safetensors() -> bytes:
    header = {"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}
    header["y"] = {"dtype": "BF16", "shape": [2], "data_offsets": [16, 20]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(20)


_ONNX = model(
    graph(
        field(5, tensor("a", np.zeros(3))),
        field(5, external_tensor("b", (1,), location="../etc", offset="0", length="4")),
        inputs={"input_ids": ["b", "s"]},
        outputs={"last_hidden_state": ["b", 8]},
    )
)


def _feed_weights(suffix: str, content: bytes, folder: Path) -> None:
    path = folder / f"weights{suffix}"
    path.write_bytes(content)
    checkpoint = open_checkpoint([path])
    for weight in checkpoint.values():
        weight.array.view(np.uint8).sum()  # reads every byte; a read beyond the map would end the process
    checkpoint.close()


def _tokenizer_file(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if not path.exists():
        write_tokenizer(path)
    return path


def _feed_tokenizer(change: tuple[int, Any], folder: Path) -> None:
    """Replaces a value in the file, then tokenizes texts that use it."""
    sound = folder / "sound"
    sound.mkdir(exist_ok=True)
    fields = json.loads(_tokenizer_file(sound).read_text("utf-8"))
    at, value = change
    places = list(_places(fields))
    holder, key = places[at % len(places)]
    holder[key] = value
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(fields))
    find_ids(path, ["[CLS]"])
    encoder = TextEncoder(make_spec(path, config={"vocab_size": 64, "type_vocab_size": 2}))
    encoded = encoder.read(ReadRequest(inputs=["a b", "", "zz" * 40], options=TextOptions(), truncate=True))
    assert all(text.ids.max(initial=0) < 64 and text.ids.min(initial=0) >= 0 for text in encoded)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


_FILES = ("config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "tokenizer_config.json")


def _feed_folder(given: tuple[str, int, Any], folder: Path) -> None:
    """Replaces a value in one of the folder's files."""
    name, at, value = given
    root = folder / "model"
    if not root.exists():
        root.mkdir()
        write_sentence_model(root)
    path = root / name
    before = path.read_text("utf-8") if path.exists() else "{}"
    fields = json.loads(before)
    places = list(_places(fields))
    if places:
        holder, key = places[at % len(places)]
        holder[key] = value
    else:
        fields = value
    path.write_text(json.dumps(fields))
    try:
        spec_of(root)
    finally:
        path.write_text(before)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
# Valid tokenizer steps, so that a changed file remains a tokenizer.
_STEPS = st.sampled_from(
    [
        {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 30},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Sequence", "normalizers": [], "pretokenizers": [], "processors": []},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2**31}, "merges": ["a b"], "unk_token": "a"},
        {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b", -1e300]], "byte_fallback": True},
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    ]
)

_METHODS = st.sampled_from(["GET", "POST", "HEAD", "PUT", "", "get"])
_SOUND_PATHS = st.sampled_from(_PATHS) | texts_of(*_PATHS, "/", "..", "%2e", "//", "/dialects/", "openai", "{model}")
_BODIES = damaged(*_EXAMPLES) | st.binary(max_size=64) | st.just(b"[" * 200_000)

PARSERS: tuple[Parser, ...] = (
    *(
        Parser(f"{dialect.name} {route.path}", bodies(route), partial(_feed_route, dialect, route))
        for dialect, route in PARSES.values()
    ),
    Parser("a whole request", st.tuples(_METHODS, _SOUND_PATHS, _BODIES, headers), _feed_table, share=40),
    Parser("headers", headers, _feed_headers, share=10),
    Parser(
        "compressed bodies",
        st.tuples(st.sampled_from(["gzip", "deflate", "zstd"]), damaged(*_compressed())),
        _feed_compressed,
        share=5,
    ),
    Parser(
        "gRPC messages",
        st.tuples(st.sampled_from(_KINDS), damaged(*_messages()) | st.binary(max_size=40)),
        _feed_message,
        share=15,
    ),
    Parser("gRPC rank streams", st.lists(damaged(*_messages()), max_size=5), _feed_rank_stream, share=4),
    Parser(
        "catalogue file",
        damaged(_CATALOGUE) | texts_of("models:", "\n", "  - ", "name: ", "&a ", "*a", "{", "[").map(str.encode),
        partial(_feed_file, read_catalogue_file, "models.yaml"),
        share=4,
    ),
    Parser("keys file", damaged(_KEYS), partial(_feed_file, read_keys, "keys.toml"), share=4),
    Parser("config file", damaged(_CONFIG), partial(_feed_config, "vectord.toml"), share=4),
    Parser("env file", damaged(_DOTENV), partial(_feed_config, ".env"), share=4),
    Parser(
        "command line",
        st.lists(texts_of(*_ARGUMENTS), max_size=6),
        lambda words, folder: load(words, {}, folder),
        share=4,
    ),
    Parser("safetensors", damaged(_safetensors()), partial(_feed_weights, ".safetensors"), share=15),
    Parser("GGUF weights", damaged(_GGUF), partial(_feed_weights, ".gguf"), share=15),
    Parser("GGUF metadata", damaged(_GGUF), partial(_feed_file, read_model, "m.gguf"), share=15),
    Parser("GGUF metadata of other types", _retyped, partial(_feed_file, read_model, "m.gguf"), share=5),
    Parser("GGUF vocabularies", damaged(_GGUF) | _retyped, partial(_feed_file, tokenizer_json, "m.gguf"), share=8),
    Parser("torch files", damaged(pack(torch_members())), partial(_feed_weights, ".bin"), share=15),
    Parser(
        "zip files",
        damaged(pack(torch_members())),
        lambda data, folder: read_members(folder / "z.bin", map_bytes(folder / "z.bin", data or b"\0")),
        share=8,
    ),
    Parser(
        "pickles",
        damaged(PICKLED_FLOATS),
        lambda data, folder: read_tensors(folder / "pytorch_model.bin", data),
        share=15,
    ),
    Parser("ONNX graphs", damaged(_ONNX), partial(_feed_file, read_onnx, "model.onnx"), share=15),
    Parser("tokenizer.json", st.tuples(st.integers(0, 500), _STEPS | _JSON), _feed_tokenizer, share=6),
    Parser(
        "vocab.txt",
        damaged(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n"),
        partial(_feed_file, vocab_txt_json, "vocab.txt"),
        share=2,
    ),
    Parser("model folders", st.tuples(st.sampled_from(_FILES), st.integers(0, 200), _JSON), _feed_folder, share=6),
)
