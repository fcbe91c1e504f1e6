"""tei.proto, the generated code, and the served methods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.grpc.fakes import METHODS

from vectord.server import grpc as rpc
from vectord.server.grpc import messages
from vectord.server.grpc import tei_pb2 as pb

PROTO = (Path(rpc.__file__).parent / "tei.proto").read_text("utf-8")

_BLOCK = re.compile(r"^(?P<kind>service|message|enum) (?P<name>\w+) \{(?:\}|\n(?P<body>.*?)^\})", re.M | re.S)
_RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)")


def blocks(kind: str) -> Iterator[tuple[str, str]]:
    """Name and body of each."""
    for block in _BLOCK.finditer(PROTO):
        if block["kind"] == kind:
            yield block["name"], block["body"] or ""


def test_the_generated_services_match_the_proto():
    """And every method is served."""
    declared = {
        f"/tei.v1.{service}/{name}": (bool(sends), asked, bool(receives), answered)
        for service, body in blocks("service")
        for name, sends, asked, receives, answered in _RPC.findall(body)
    }
    assert declared == {
        path: (method.client_streaming, method.input_type.name, method.server_streaming, method.output_type.name)
        for path, method in METHODS.items()
    }
    served = {method.path: (method.streams, method.kind.DESCRIPTOR.name, method.streams) for method in messages.METHODS}
    assert served == {path: declared[path][:3] for path in declared if path != messages.RERANK_STREAM}
    assert declared[messages.RERANK_STREAM] == (True, "RerankStreamRequest", False, "RerankResponse")


NUMBERS = {
    "EmbedRequest": "inputs truncate normalize truncation_direction prompt_name dimensions",
    "EmbedResponse": "embeddings metadata",
    "Metadata": "compute_chars compute_tokens total_time_ns tokenization_time_ns queue_time_ns inference_time_ns",
    "EmbedSparseRequest": "inputs truncate truncation_direction prompt_name",
    "SparseValue": "index value",
    "RerankRequest": "query texts truncate raw_scores return_text truncation_direction",
    "RerankStreamRequest": "query text truncate raw_scores return_text truncation_direction",
    "Rank": "index text score",
    "PredictRequest": "inputs truncate raw_scores truncation_direction",
    "PredictPairRequest": "inputs truncate raw_scores truncation_direction",
    "Prediction": "score label",
    "EncodeRequest": "inputs add_special_tokens prompt_name",
    "SimpleToken": "id text special start stop",
    "DecodeRequest": "ids skip_special_tokens",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_field_numbers_never_change(name):
    """TEI's clients were compiled with them."""
    fields = {field.number: field.name for field in pb.DESCRIPTOR.message_types_by_name[name].fields}
    assert fields == dict(enumerate(NUMBERS[name].split(), 1))
