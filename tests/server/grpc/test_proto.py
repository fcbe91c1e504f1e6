"""tei.proto, the generated code, and the served methods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.server.grpc.fakes import METHODS

from vectord.server import grpc as rpc
from vectord.server.grpc import messages

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
