from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.peer_child import LIBRARIES, Library
from bench.peer_environments import pins
from bench.peer_files import FORMATS

from bench import peers


def test_a_failed_peer_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that cannot start is reported by name, and the next peer is measured."""

    def compare(found: peers.Found, *_: Any) -> None:
        if found.peer is peers.PEERS[0]:
            raise RuntimeError("no answer; its log ends:\nno module named x")

    monkeypatch.setattr(peers, "_compare", compare)
    nothing: Any = None
    found = peers.measure(nothing, nothing, "", ["infinity"], False, 1, 1)
    assert [(one.peer.name, one.reason) for one in found] == [
        ("infinity, torch", "no module named x"),
        ("infinity, optimum (ONNX)", ""),
    ]


def test_tei_is_found_or_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--tei precedes TEI_BINARY, which precedes PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TEI_BINARY", raising=False)
    with pytest.raises(RuntimeError, match=r"cargo install.*--tei or TEI_BINARY"):
        peers.find_tei("")
    for name in ("text-embeddings-router", "b", "c"):
        (tmp_path / name).touch(mode=0o755)
    assert peers.find_tei("").name == "text-embeddings-router"
    monkeypatch.setenv("TEI_BINARY", str(tmp_path / "b"))
    assert peers.find_tei("").name == "b"
    assert peers.find_tei(str(tmp_path / "c")).name == "c"


def test_peers_are_complete() -> None:
    """Each peer names an existing library, format and list of pinned versions."""
    for peer in peers.PEERS:
        assert bool(peer.command) != (peer.library in LIBRARIES), peer.name
        assert peer.form in ("", *FORMATS), peer.name
        if not peer.is_tei:
            assert all("==" in pin for pin in pins(peer.environment)), peer.name


def test_agreement_is_of_directions_or_of_scores() -> None:
    """Lengths of vectors and a monotonous scale of scores do not matter; one other vector does."""
    assert peers.agreement([[1, 0], [0, 2]], [[3, 0], [0, 1]]) == pytest.approx(1)
    assert peers.agreement([[1, 0], [0, 2]], [[3, 0], [1, 0]]) == pytest.approx(0)
    assert peers.agreement([0.1, 0.2, 0.3], [1, 2, 3]) == pytest.approx(1)


def test_a_library_stops_at_its_limit() -> None:
    """Calls end after the limit, and only finished calls count."""
    calls: list[list[str]] = []

    def call(texts: list[str]) -> list[list[float]]:
        calls.append(texts)
        return [[1.0]] * len(texts)

    library = Library(call, ["a", "b", "c", "d", "e"])
    assert len(library(texts=5, texts_per_call=2, limit_s=60)["latencies_ms"]) == 2
    assert calls == [["a", "b"], ["c", "d"]]
    assert len(library(texts=5, texts_per_call=2, limit_s=0)["latencies_ms"]) == 1
