"""`python -m bench.gpu`: the limits of a GPU, vectord's share of them, and its peers, within minutes.

Each section is a process with a time limit (gpu_section.py): a section that fails or hangs is reported, and the others
continue. All findings are written to `--out` after every section.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.child import REPOSITORY
from bench.gpu_options import Options
from bench.gpu_rows import rows
from bench.gpu_section import Finding, Section, run_section
from bench.machine import conditions
from bench.report import Report, show

MAIN, BIASED, SMALL, MULTI, BERT_LARGE, GATED = MODELS = (
    "bge-base", "mpnet-base", "minilm", "bge-m3", "bge-large", "qwen3-embedding-0.6b",
)  # fmt: skip
LARGE = (BERT_LARGE, GATED)
TESTS = {
    "tests": "tests/compute/backends/torch/test_cuda.py",
    "architectures": "tests/compute/networks/test_on_gpu.py",
}
LEAST_S = 5.0  # with less time left no section starts


def main() -> None:
    arguments = _arguments()
    options = Options(
        device=arguments.device,
        quick=arguments.quick,
        folder=str(arguments.models_folder.absolute()),
        seconds=arguments.seconds,
    )
    until_s = time.monotonic() + arguments.minutes * 60
    about = _about(arguments)
    sections: list[Section] = []
    for name, argv in _sections(options, until_s, arguments.peer_python):
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        print(f"# {name}", file=sys.stderr, flush=True)
        sections.append(_run(name, argv, _limit_s(arguments.seconds, until_s)))
        _write(arguments.out, about, sections)
    show(_report(about, sections), as_json=False)


def _sections(options: Options, until_s: float, peer_python: str) -> Iterator[tuple[str, list[str]]]:
    """Names and commands, the most important first."""

    def section(
        module: str, *models: str, words: Sequence[str] = (), python: str = sys.executable, **changes: Any
    ) -> list[str]:
        changed = replace(options, models=models, seconds=_limit_s(options.seconds, until_s), **changes)
        return [python, "-m", f"bench.{module}", *words, changed.argument()]

    yield "attention", section("gpu_attention")
    yield "weights", section("gpu_shapes", *MODELS)
    yield "kernels", section("gpu_kernels", MAIN)
    yield "ceilings", section("gpu_ceilings")
    for name in (MAIN, BIASED):
        yield f"{name} in process", section("gpu_forward", name)
    yield f"{MAIN} over HTTP", section("gpu_http", MAIN)
    yield "front-ends", section("gpu_front_ends", MAIN)
    for name in (MULTI, SMALL, *LARGE):
        yield f"{name} in process", section("gpu_forward", name)
    yield "fidelity", section("gpu_fidelity", MULTI)
    for name in (MAIN, GATED):
        yield f"{name} unfused", section("gpu_forward", name, plain=True)
    for dtype in ("fp8", "int8"):
        yield f"{BERT_LARGE} in {dtype}", section("gpu_forward", BERT_LARGE, dtype=dtype)
    for name, tests in TESTS.items():
        yield name, section("gpu_tests", words=[tests])
    for peer, *models in (("sentence-transformers", MAIN, SMALL), ("FlagEmbedding", MULTI)):
        yield peer, section("gpu_peers", *models, words=[peer], python=peer_python)
    for name in (SMALL, MULTI, *LARGE):
        yield f"{name} over HTTP", section("gpu_http", name)


def _limit_s(seconds: float, until_s: float) -> float:
    return min(seconds, until_s - time.monotonic())


def _run(name: str, argv: Sequence[str], seconds: float) -> Section:
    if seconds < LEAST_S:
        return Section(name, error="not run: the time of the whole run was up")
    section = run_section(name, argv, seconds, lambda finding: print(_line(finding), file=sys.stderr, flush=True))
    if section.error:
        print(f"  {section.error}", file=sys.stderr, flush=True)
    return section


def _line(finding: Finding) -> str:
    return "  " + ", ".join(f"{key} {value}" for key, value in finding.items() if not isinstance(value, list))


def _write(path: Path | None, about: dict[str, str], sections: Sequence[Section]) -> None:
    if path is None:
        return
    whole = {"conditions": about, "sections": [asdict(section) for section in sections]}
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(whole, indent=1))
    unfinished.replace(path)


def _report(about: dict[str, str], sections: Sequence[Section]) -> Report:
    for section in sections:
        for finding in section.findings:
            if finding["kind"] == "device":
                about = about | {
                    "device": ", ".join(f"{key} {value}" for key, value in finding.items() if key != "kind")
                }
    return Report(title="vectord gpu", conditions=about, rows=rows(sections), rounds={})


def _about(arguments: argparse.Namespace) -> dict[str, str]:
    about = conditions()
    if arguments.commit:
        about["commit"] = arguments.commit
    driver = _driver()
    return about | ({"driver": driver} if driver else {}) | {
        "models": "random weights in the shapes named" + (", tiny" if arguments.quick else ""),
        "figures": "medians of 3 rounds; FLOP by the formula in bench/gpu_shapes.py",
    }  # fmt: skip


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.limit", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and short rounds: only to see that all runs")
    parser.add_argument("--seconds", type=float, default=75, help="a section may take (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=8, help="all may take (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="sections whose name contains one of these")
    parser.add_argument("--out", type=Path, help="JSON of all findings, written after every section")
    parser.add_argument("--commit", help="the measured commit, if git is not available")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="a Python that has the peers (default: the one that runs this)"
    )
    parser.add_argument(
        "--models-folder",
        type=Path,
        default=REPOSITORY / "models/bench",
        help="where random models are written, once, 5.6 GB (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
