"""Changes one random value of one JSON file of a model folder: its library's numbers or a refusal in one line.

    python -m tests.checkpoints.fuzz_folders --changes 2000 --seed 7

Prints each fault and exits with code 1 if there was one. tests/checkpoints/test_fuzz_folders.py runs a few changes.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.checkpoints.test_every_setting import CASES, REMOVED, VALUES, Case, Place, changed, places, same, value_at

from vectord.errors import InvalidRequest, StartError

NEIGHBOURS = ("relu", "mean", "cls", "fast", [[]], [1, 2], {"x": {"y": 1}}, "\x00", "[MASK]", 2**31, -0.0, 1e-30)
VALUES_AT_ONCE = 200  # of a file: tokenizer.json has thousands, most of them words


def faults(case: Case, folder: Path, count: int, random_: random.Random) -> Iterator[str]:
    """Make `count` changes, each alone, and describe those that are wrong. The folder is unchanged afterwards."""
    unchanged = case.answer(folder)
    files = sorted(folder.rglob("*.json"))
    for _ in range(count):
        file = random_.choice(files)
        text = file.read_text()
        saved = json.loads(text)
        known = list(places(saved))
        if not known:
            continue
        place = random_.choice(random_.sample(known, min(VALUES_AT_ONCE, len(known))))
        own, other = value_at(saved, place), value_at(saved, random_.choice(known))
        value = random_.choice([*VALUES, *NEIGHBOURS, other, *near(own), REMOVED])
        file.unlink()
        file.write_text(json.dumps(changed(saved, place, value)))
        fault = fault_of(case, folder, file, place, unchanged)
        file.unlink()
        file.write_text(text)
        if fault:
            shown = "removed" if value is REMOVED else repr(value)[:80]
            yield f"{file.relative_to(folder)}: {'.'.join(map(str, place))} {shown}: {fault}"


def near(value: Any) -> tuple[Any, ...]:
    """Values of the same type."""
    match value:
        case bool():
            return (not value,)
        case int() | float():
            return (value + 1, value - 1, value * 2, -value)
        case str():
            return (value + "x", value.upper(), value[:-1])
        case list():
            return (value[:-1], value[::-1], [*value, *value[:1]])
        case _:
            return ()


def fault_of(case: Case, folder: Path, file: Path, place: Place, unchanged: Any) -> str | None:
    """Numbers of the unchanged folder pass too where the library raises an error: it checks settings without effect."""
    try:
        got = case.answer(folder)
    except StartError as refused:
        message = str(refused)
        names = file.name in message or file.parent.name in message or "tensor" in message or str(place[-1]) in message
        return None if message.isprintable() and names else f"refused: {message!r}"
    except InvalidRequest:  # such as a token beyond the vocabulary: refused for each text that has it
        return None
    except Exception as error:
        return f"{type(error).__name__} {error}"
    fault = "other numbers"
    for reference in filter(None, (case.second, case.reference)):
        try:
            if same(got, reference(folder)):
                return None
        except BaseException as error:  # tokenizers' panics, too
            if isinstance(error, KeyboardInterrupt):
                raise
            if same(got, unchanged):
                return None
            fault = f"other numbers; the library raises {type(error).__name__}"
    return fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints.fuzz_folders", description=__doc__)
    parser.add_argument("--changes", type=int, default=2000, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="to make the same changes again")
    options = parser.parse_args()
    print(f"{options.changes:,} changes of {len(CASES)} folders, seed {options.seed}", flush=True)
    logging.disable()
    torch.set_num_threads(1)
    found = 0
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory(prefix="vectord-fuzz-") as place:
            folder = case.write(Path(place))
            for fault in faults(case, folder, options.changes // len(CASES), random.Random(f"{options.seed} {name}")):
                found += 1
                print(f"{name}: {fault}", flush=True)
        print(f"{name}: done", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
