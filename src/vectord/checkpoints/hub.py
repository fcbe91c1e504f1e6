"""Turn a model's name into a folder on this machine: `resolve(name, ...) -> Located`.

engine/models calls it at start, on the main thread, before the port opens; it blocks while a download runs. The order,
first match wins:

    a local folder or file    no network; a file is a GGUF file
    ollama:NAME               no network; the GGUF file that Ollama has downloaded
    the Hugging Face cache    no network, if it has all needed files
    HF_HOME or the cache      no network; a plain folder directly inside, named as the model; it has no revision either
    a Python package          no network; packages have no revision, so asking for one skips them
    the Hugging Face hub      unless offline; only the needed files, never code; torch files (read without running
                              them) and graphs only if there are no safetensors

huggingface_hub is imported only if a cache folder of the model exists or a download is due: its import takes 0.15 s,
and the default model must answer within a second after the process starts.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vectord.checkpoints import catalogue
from vectord.checkpoints.files import gguf_file
from vectord.checkpoints.files.read import read_settings
from vectord.checkpoints.folder import ADAPTER
from vectord.checkpoints.gguf import ollama
from vectord.checkpoints.pulling import COMMIT, PullFailed, check_names, pull, repository_folder
from vectord.checkpoints.snapshot import holds_only_adapter, is_complete
from vectord.checkpoints.spec import Located
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")
progress = logging.getLogger("vectord.progress")  # observability/progress.py shows it on a terminal

_FIRST_FILES = ("config.json", "modules.json", ADAPTER)


def resolve(
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    hf_home: str | None = None,
    token: str | None = None,
    graphs: Sequence[str] = (),
) -> Located:
    """Find the files of model `name`, and download them if necessary.

    revision: branch, tag or commit of the hub; hf_home: folder of the Hugging Face cache, None: huggingface_hub's
    default; token: for the download; graphs: patterns of ONNX files (graphs.py), of which at least one is needed too.
    """
    if local := _local(name):
        if revision is not None:
            log.warning("%s is on this machine: revision %s is ignored", name, revision)
        return local
    entry = catalogue.find(name)
    cache = cache_folder(hf_home, os.environ)
    is_cached_alias = entry is not None and "/" in name and repository_folder(name, cache).is_dir()
    hub_id = name if entry is None or is_cached_alias else entry.hub_id
    check_names(hub_id, revision)
    package = entry.package if entry else None if "/" in name else re.sub(r"[-.]", "_", name).lower()
    cached = _cached(hub_id, revision, cache)
    if cached and is_complete(cached, entry) and _has_any(cached, graphs):
        return Located(folder=cached, model_id=name, revision=_commit(cached), source="cache")
    home = Path(hf_home or os.environ.get("HF_HOME") or cache).expanduser()
    plain = [home / one for one in (entry.names if entry else (name,))]
    if revision is None and (found := next(filter(is_model_folder, plain), None)) and _has_any(found, graphs):
        return Located(folder=found, model_id=name, revision=None, source="folder")
    if revision is None and package and (found := _package_folder(package)) and _has_any(found, graphs):
        return Located(folder=found, model_id=name, revision=None, source="package")
    if not offline:
        cached = _download(hub_id, revision, cache, token, graphs, cached=cached)
    if cached:  # the reader reports missing files
        return Located(folder=cached, model_id=name, revision=_commit(cached), source="cache")
    at = f" at revision {revision}" if revision else ""
    places = [f"no folder {name} with a config.json", f"no {hub_id}{at} in {cache}"]
    if revision is None:
        places.append(f"no folder {plain[-1]} with a config.json")
    if package:
        missing = f"no package {package} with a model in it"
        places.append(f"packages have no revision ({package})" if revision else missing)
    raise ModelUnavailable(
        f"model {name}{at} is not on this machine ({'; '.join(places)}) and this command downloads nothing; "
        f"download it once with `vectord pull`, or give the path of its folder{catalogue.hint(name)}"
    )


def find_base(folder: Path) -> str | None:
    """Return the name of the base model of a folder that has an adapter instead of weights; None for other folders.

    A relative path may begin at the working folder, as peft has it, or at the adapter's.
    """
    adapter = folder / ADAPTER
    if not holds_only_adapter(folder):
        return None
    name = read_settings(adapter).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelUnavailable(
            f"{adapter}: base_model_name_or_path names no base model; set it, or serve the adapter with the model that "
            f"it was trained for: vectord serve BASE --lora NAME={folder}"
        )
    alongside = folder / name
    return str(alongside) if not is_model_folder(Path(name)) and is_model_folder(alongside) else name


def _has_any(folder: Path, graphs: Sequence[str]) -> bool:
    return not graphs or any(any(folder.glob(pattern)) for pattern in graphs)


def cache_folder(hf_home: str | None, environ: Mapping[str, str]) -> Path:
    """Return huggingface_hub's cache folder by its own rules, without its import.

    A home that holds models itself, and none in hub/, is the cache: some servers keep their models there.
    """
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(key):
            return Path(environ[key]).expanduser()
    home = hf_home or environ.get("HF_HOME")
    if home:
        folder = Path(home).expanduser()
        return folder if _holds_models(folder) and not _holds_models(folder / "hub") else folder / "hub"
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _holds_models(folder: Path) -> bool:
    return next(folder.glob("models--*"), None) is not None


def _local(name: str) -> Located | None:
    """The folder or GGUF file at the path `name`, or the file that Ollama has under that name."""
    if name.startswith(ollama.PREFIX):
        path: Path | None = ollama.find_blob(name.removeprefix(ollama.PREFIX), os.environ)
    else:
        path = _path_of(name)
    if path is None:
        return None
    if is_model_folder(path) or gguf_file.is_gguf(path):
        return Located(folder=path, model_id=model_id_of(name), revision=None, source="folder")
    if _must_be_path(name) or name.endswith(gguf_file.SUFFIX):
        why = "has no config.json and no adapter_config.json" if path.is_dir() else "is not a folder or GGUF file"
        if path.is_dir() and not os.access(path, os.X_OK):
            why = "is a folder that this user may not open"
        raise ModelUnavailable(
            f"model {name} {why}; give a folder in sentence-transformers or transformers layout, or a .gguf file"
        )
    return None


def model_id_of(name: str) -> str:
    """The model id of the folder, GGUF file or Ollama model `name`, which may be missing; a hub id is its own."""
    if name.startswith(ollama.PREFIX):
        return name.removeprefix(ollama.PREFIX)
    path = _path_of(name)
    if path is None:
        return name
    if path.suffix == gguf_file.SUFFIX:
        return path.stem
    is_local = _must_be_path(name) or is_model_folder(path) or gguf_file.is_gguf(path)
    return path.resolve().name if is_local else name


def _path_of(name: str) -> Path | None:
    """The path that the name may be; None for a URL."""
    if not name or "\0" in name or "://" in name:
        return None
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user
        return Path(name)


def _must_be_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or "\\" in name or Path(name).is_absolute()


def is_model_folder(path: Path) -> bool:
    """Return whether the folder has one of the files with which a model's files begin."""
    try:
        return any((path / name).is_file() for name in _FIRST_FILES)
    except OSError:  # a name too long for a path, or no permission
        return False


def _cached(hub_id: str, revision: str | None, cache: Path) -> Path | None:
    if not repository_folder(hub_id, cache).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  0.15 s

    for file in _FIRST_FILES:
        found = try_to_load_from_cache(hub_id, file, cache_dir=cache, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _package_folder(package: str) -> Path | None:
    """The `model/` folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / "model"
        if is_model_folder(folder):
            return folder
    return None


def _download(
    hub_id: str, revision: str | None, cache: Path, token: str | None, graphs: Sequence[str], *, cached: Path | None
) -> Path:
    """The snapshot after fetching its missing files; `cached` if they cannot be fetched."""

    def show(hub_id: str, done: int, total: int) -> None:
        progress.info(hub_id, extra={"progress": (done, total)})

    log.info("downloading %s to %s", hub_id, cache)
    try:
        return pull(hub_id, revision=revision, cache=cache, token=token, graphs=graphs, progress=show).folder
    except PullFailed as error:
        if cached:
            log.warning("%s: using the cached files, since %s", hub_id, error.failure)
            return cached
        raise ModelUnavailable(
            f"model {hub_id} is neither a folder with a config.json nor in {cache}, and {error.failure}; a folder may "
            f"also be given by its path{catalogue.hint(hub_id)}"
        ) from None


def _commit(snapshot: Path) -> str | None:
    return snapshot.name if COMMIT.fullmatch(snapshot.name) else None
