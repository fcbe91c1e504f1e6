"""The findings of bench/gpu.py as rows, with targets for one H200. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.gpu_section import Finding, Section
from bench.report import Row, at_least, at_most

IN_PROCESS, THREE, OVER_HTTP = "in process", "in process, three vectors", "over HTTP"
PEER = "sentence-transformers, 32 texts per batch"
LEAST_OF_CEILING, LEAST_OF_IN_PROCESS, LEAST_OF_DENSE, LEAST_OF_PEER = 0.50, 0.85, 0.9, 10
MAIN = ("bge-base", 512)  # has targets for its shares of the ceiling and of the forward
SHORT = 16  # tokens; has a target against the peer
ARCTIC_LENGTHS, LEAST_ARCTIC = (50, 512), 1.6  # million tokens per second
QUERIES, LEAST_QUERIES = ("minilm", 12), 60_000  # texts per second
SHOWN_KERNELS = 3
MOST_QUERY_MS = {("minilm", OVER_HTTP): 1.5, ("minilm", "with graphs"): 1.0, ("bge-base", "with graphs"): 1.0}


class Found:
    """Findings by kind."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        self.models = list(dict.fromkeys(found["model"] for found in self.of("rate", "latency")))
        self.on_gpu = any("capability" in found for found in self.of("device"))

    def of(self, *kinds: str, **facts: Any) -> list[Finding]:
        """The findings of these kinds with all `facts`."""
        some = (found for found in self.findings if found["kind"] in kinds)
        return [found for found in some if all(found.get(name) == value for name, value in facts.items())]

    def rate(self, model: str, length: int, how: str) -> float | None:
        """Tokens per second, or None if not measured."""
        return next((found["tokens_per_s"] for found in self.of("rate", model=model, length=length, how=how)), None)

    def target(self, row: dict[str, Any]) -> dict[str, Any]:
        """`row`, a Row's target, if the device has targets."""
        return row if self.on_gpu else {}


def rows(sections: Sequence[Section]) -> list[Row]:
    """Ceilings, then each model, then failures."""
    found = Found([finding for section in sections for finding in section.findings])
    return [
        *_ceilings(found),
        *(row for model in found.models for row in _of_model(found, model)),
        *_device_time(found),
        *_served(found),
        *_arctic(found),
        *_troubles(sections),
    ]


def _ceilings(found: Found) -> Iterator[Row]:
    for ceiling in found.of("matrix"):
        what = f"matrix ceiling, {ceiling['dtype']}, {ceiling['side']} x {ceiling['side']} x {ceiling['side']}"
        yield Row(what=what, value=f"{ceiling['flop_per_s'] / 1e12:,.1f} TFLOP/s")
    for ceiling in found.of("copy"):
        yield Row(what="copy on the device, read and written", value=f"{ceiling['bytes_per_s'] / 1e9:,.0f} GB/s")
    for ceiling in found.of("host copy"):
        there, back = (ceiling[f"{way}_device_bytes_per_s"] / 1e9 for way in ("to", "from"))
        yield Row(what="copy to the device, and back", value=f"{there:,.0f} and {back:,.0f} GB/s")
    for ceiling in found.of("products"):
        value = f"{ceiling['flop_per_s'] / 1e12:,.1f} TFLOP/s"
        yield Row(what=f"{ceiling['model']}'s linear layers only", value=value, tokens_per_s=ceiling["tokens_per_s"])


def _of_model(found: Found, model: str) -> Iterator[Row]:
    for loaded in found.of("loaded", model=model):
        batch = f"{loaded['max_batch_tokens']:,} tokens a forward, {loaded['graphs']} graphs"
        yield Row(what=f"{model}, {loaded['dtype']}, loaded in {loaded['seconds']:.1f} s", value=batch)
    for rate in found.of("rate", model=model):
        yield _rate(found, rate)
    for latency in found.of("latency", model=model):
        p50_ms, most_ms = latency["p50_ms"], MOST_QUERY_MS.get((model, latency["how"]))
        yield Row(
            what=f"{model}, one query of {latency['tokens']} tokens, {latency['how']}",
            p50_ms=p50_ms,
            p99_ms=latency["p99_ms"],
            **found.target(at_most(p50_ms, most_ms, " ms p50") if most_ms else {}),
        )


def _rate(found: Found, rate: Finding) -> Row:
    value, target = _held_against(found, rate)
    what = f"{rate['model']}, {rate['length']} tokens, {rate['how']}"
    if rate["how"] == OVER_HTTP:
        what += f", {rate['texts']} texts per request"
    return Row(what=what, value=value, **_figures(rate), **found.target(target))


def _figures(rate: Finding) -> dict[str, Any]:
    return {name: rate.get(name) for name in ("tokens_per_s", "requests_per_s", "p50_ms", "p99_ms")}


def _device_time(found: Found) -> Iterator[Row]:
    """Attention by the fastest form of each kernel, the steps of a layer, and the kernels of whole forwards."""
    for batch in dict.fromkeys(each["batch"] for each in found.of("attention")):
        fastest: dict[str, float] = {}
        for each in found.of("attention", batch=batch):
            kernel = each["kernel"].partition(",")[0]
            fastest[kernel] = min(each["seconds"], fastest.get(kernel, each["seconds"]))
        value = ", ".join(f"{kernel} {seconds * 1e6:,.0f} us" for kernel, seconds in fastest.items())
        yield Row(what=f"attention, {batch}", value=value)
    for step in found.of("step"):
        yield Row(what=f"a layer of bge-base, {step['name']}", value=f"{step['seconds'] * 1e6:,.0f} us")
    for run in found.of("kernels"):
        longest = ", ".join(f"{name[:40]} {us:,.0f} us" for name, us, _ in run["longest"][:SHOWN_KERNELS])
        device = f"{run['device_seconds'] * 1e3:.2f} ms on the device: {longest}"
        yield Row(what=run["what"], value=f"{run['seconds'] * 1e3:.2f} ms, {device}")


def _served(found: Found) -> Iterator[Row]:
    """Short texts by front-ends, vectors under load, the end under load, and the tests."""
    for load in found.of("short texts"):
        what = f"{load['model']}, {load['length']} tokens, {load['texts']} texts per request"
        processes = f"front-ends {load['front_ends'] or 'by default'}, cores {load['cores']}"
        yield Row(what=what, value=processes, **_figures(load))
    for embedded in found.of("library"):
        what = f"{embedded['model']}, {embedded['length']} tokens, vectord.Embedder"
        yield Row(what=what, tokens_per_s=embedded["tokens_per_s"])
    for load in found.of("fidelity"):
        value = f"{load['wrong']} wrong of {load['texts']:,} vectors, least cosine {load['least_cosine']:.5f}"
        what = f"{load['model']} under mixed load, statuses {load['statuses']}"
        yield Row(what=what, value=value, **_figures(load), **found.target(at_most(load["wrong"], 0, " wrong")))
    for sent in found.of("at once"):
        what = f"{sent['model']}, {sent['texts']} texts of {sent['length']} tokens at once"
        yield Row(what=what, value=f"statuses {sent['statuses']}")
    for ended in found.of("SIGTERM"):
        value = f"statuses {ended['statuses']}, exit code {ended['exit']}"
        yield Row(what=f"{ended['model']}, SIGTERM during {ended['requests']} requests", value=value)
    for ran in found.of("tests"):
        yield Row(what=ran["tests"], value=", ".join(f"{count} {what}" for what, count in ran["counts"].items()))


def _arctic(found: Found) -> Iterator[Row]:
    """bge-base's rates over HTTP again: snowflake-arctic-embed-m has the same shape and pooling."""
    for length in ARCTIC_LENGTHS:
        for rate in found.of("rate", model="bge-base", length=length, how=OVER_HTTP):
            target = at_least(rate["tokens_per_s"] / 1e6, LEAST_ARCTIC, " M tokens/s")
            what = f"snowflake-arctic-embed-m (same shape as bge-base), {length} tokens, over HTTP"
            yield Row(what=what, **_figures(rate), **found.target(target))


def _held_against(found: Found, rate: Finding) -> tuple[str, dict[str, Any]]:
    """The rate as a share of its bound, and the target for that share."""
    how, about = rate["how"], (rate["model"], rate["length"])
    in_process, over_http = (found.rate(*about, ours) for ours in (IN_PROCESS, OVER_HTTP))
    if how == IN_PROCESS:
        ceiling = next(iter(found.of("matrix")), None)
        if ceiling is None:
            return "", {}
        share = rate["tokens_per_s"] * rate["flop_per_token"] / ceiling["flop_per_s"]
        return f"{share:.2f} of ceiling", at_least(share, LEAST_OF_CEILING, "") if about == MAIN else {}
    if how == THREE and in_process:
        share = rate["tokens_per_s"] / in_process
        return f"{share:.2f} of dense", at_least(share, LEAST_OF_DENSE, "")
    if how == OVER_HTTP and about == QUERIES:
        texts_per_s = rate["tokens_per_s"] / rate["length"]
        return f"{texts_per_s:,.0f} texts/s", at_least(texts_per_s, LEAST_QUERIES, " texts/s")
    if how == OVER_HTTP and in_process:
        share = rate["tokens_per_s"] / in_process
        return f"{share:.2f} of in process", at_least(share, LEAST_OF_IN_PROCESS, "") if about == MAIN else {}
    if how in (THREE, OVER_HTTP):
        return "", {}
    return _against_peer(rate, in_process, over_http)


def _against_peer(rate: Finding, in_process: float | None, over_http: float | None) -> tuple[str, dict[str, Any]]:
    """vectord's tokens per second as a multiple of the peer's: over HTTP, with tokenization, and in process."""
    times = {
        name: ours / rate["tokens_per_s"] for name, ours in (("HTTP", over_http), ("in process", in_process)) if ours
    }
    value = ", ".join(f"{name} {ratio:.1f} x" for name, ratio in times.items())
    if "HTTP" in times and rate["how"] == PEER and rate["length"] == SHORT:
        return value, at_least(times["HTTP"], LEAST_OF_PEER, " x")
    return value, {}


def _troubles(sections: Sequence[Section]) -> Iterator[Row]:
    for section in sections:
        for finding in section.findings:
            if finding["kind"] == "absent":
                yield Row(what=finding["what"], value="not installed here")
            if finding["kind"] == "failed":
                yield Row(what=f"{section.name}: {finding['what']}", value=f"failed: {finding['error'][:200]}")
        if section.error:
            yield Row(what=section.name, value=f"failed: {section.error[-200:]}")
