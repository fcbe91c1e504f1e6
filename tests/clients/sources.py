"""Request types in the sources of servers that have no client: vLLM, llama.cpp and infinity.

`python -m tests.clients.sources` downloads the files that define them from the package index. They are read as text;
no line of them runs.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from pathlib import Path
from urllib.request import Request, urlopen

FOLDER = Path(__file__).parents[2] / ".venv-tools" / "sources"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
# Archive in the index: the names of its files with request types. A new version shows what is new.
ARCHIVES = {
    "vllm-0.33.0.tar.gz": r"vllm/entrypoints/(pooling|serve)/.*protocol\.py",
    "llama_cpp_python-0.3.36.tar.gz": r"tools/server/server-(context|common)\.cpp",
    "infinity_emb-0.0.78-py3-none-any.whl": r"pymodels\.py",
}


def fields(package: str, names: str) -> set[str]:
    """The fields of the pydantic models whose names match a pattern, with the inherited ones."""
    classes = _classes(package)
    matching = [name for name in classes if re.fullmatch(names, name)]
    assert matching, f"{package} has no {names} any more"
    return {field for name in matching for field in _fields(classes, name)}


def llama_cpp(name: str) -> set[str]:
    """The keys that a handler of the server, or a function for its responses, reads of a body."""
    source = "".join(_texts("llama_cpp_python"))
    handler = rf"^    this->{name} = .*?^    }};"
    function = rf"^\S[^\n]*\b{name}\(.*?^}}"
    code = re.search(f"{handler}|{function}", source, re.MULTILINE | re.DOTALL)
    assert code, f"llama.cpp has no {name} any more"
    key = r'"(\w+)"'
    reads = re.findall(rf"(?:body|request)\.(?:at|count|contains)\({key}|json_value\((?:body|request), {key}", code[0])
    return {name for pair in reads for name in pair if name}


@cache
def _classes(package: str) -> dict[str, ast.ClassDef]:
    return {
        node.name: node for text in _texts(package) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
    }


def _fields(classes: dict[str, ast.ClassDef], name: str) -> Iterator[str]:
    if name not in classes:  # BaseModel
        return
    for base in classes[name].bases:
        yield from _fields(classes, ast.unparse(base))
    for node in classes[name].body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "ClassVar" not in ast.unparse(node.annotation)
        ):
            yield node.target.id


def _texts(package: str) -> Iterator[str]:
    files = [path for archive in ARCHIVES if archive.startswith(package) for path in (FOLDER / archive).iterdir()]
    assert files, f"{package} is missing: `make clients` downloads it"
    return (path.read_text("utf-8") for path in files)


def main() -> None:
    for archive, names in ARCHIVES.items():
        folder = FOLDER / archive
        if not folder.exists():
            print(f"Downloading {archive} for its request types (once) ...", flush=True)
            files = [content for name, content in _files(archive) if re.search(rf"/{names}$", name)]
            folder.mkdir(parents=True)
            for number, content in enumerate(files):
                (folder / str(number)).write_bytes(content)


def _files(archive: str) -> Iterator[tuple[str, bytes]]:
    content = BytesIO(_download(archive))
    if archive.endswith(".whl"):
        with zipfile.ZipFile(content) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
    else:
        with tarfile.open(fileobj=content) as sources:
            yield from ((member.name, file.read()) for member in sources if (file := sources.extractfile(member)))


def _download(archive: str) -> bytes:
    project = re.split(r"-\d", archive)[0].replace("_", "-")
    headers = {"Accept": "application/vnd.pypi.simple.v1+json"}
    with urlopen(Request(f"{INDEX}/{project}/", headers=headers), timeout=60) as response:
        (url,) = (file["url"] for file in json.load(response)["files"] if file["filename"] == archive)
    with urlopen(url, timeout=60) as response:
        return response.read()


if __name__ == "__main__":
    main()
