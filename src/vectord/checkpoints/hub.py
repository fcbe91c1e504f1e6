"""A model's name to a folder on this machine: `resolve(name, ...) -> Located`.

Called by models/ at start, on the main thread, before the port opens; it may block for as long as a download takes.
The order, first hit wins:

    a local folder            no network, and nothing but the folder
    the Hugging Face cache    no network, if all that is needed is there
    a Python package          no network; packages have no revision, so asking for one skips them
    the Hugging Face hub      unless offline; only the files that are read, never code; torch files (which are read
                              without running what is in them) and graphs only for want of safetensors

huggingface_hub is imported when a cache folder of that model exists or a download is due: its import takes 0.15 s,
and the default model must answer within a second of exec.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from vectord.checkpoints import catalogue
from vectord.checkpoints.snapshot import DOWNLOADED, is_complete, needed_graph_files, needed_torch_files
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

Source = Literal["folder", "package", "cache", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    folder: Path
    model_id: str  # the hub id or package as the operator named it; of a local folder its last name, not its path
    revision: str | None  # the commit, where the source knows one
    source: Source


def resolve(
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    hf_home: str | None = None,
    token: str | None = None,
    graphs: Sequence[str] = (),
) -> Located:
    """Find the files of model `name`, by a download if nothing else has them.

    revision: branch, tag or commit of the hub; hf_home: folder of the Hugging Face cache, None: as huggingface_hub
    finds it; token: for the download alone; graphs: patterns of ONNX files, of which one at least is wanted too
    (artifacts/graphs.py). Raises ModelUnavailable saying what was looked for where, and what helps.
    """
    if local := _local_folder(name):
        if revision is not None:
            log.warning("%s is a local folder: revision %s is not looked at", name, revision)
        return Located(folder=local, model_id=local.resolve().name, revision=None, source="folder")
    check_names(name, revision)
    entry = catalogue.find(name)
    hub_id = entry.hub_id if entry else name
    package = entry.package if entry else _package_name(name)
    cache = cache_folder(hf_home, os.environ)
    cached = _cached(hub_id, revision, cache)
    if cached and is_complete(cached, entry) and _has_any(cached, graphs):
        return Located(folder=cached, model_id=name, revision=_commit(cached), source="cache")
    if revision is None and package and (found := _package_folder(package)) and _has_any(found, graphs):
        return Located(folder=found, model_id=name, revision=None, source="package")
    if not offline:
        found = _download(hub_id, revision, cache, token, graphs, otherwise=cached)
        return Located(folder=found, model_id=name, revision=_commit(found), source="hub")
    if cached:  # whoever reads it will say what is missing
        return Located(folder=cached, model_id=name, revision=_commit(cached), source="cache")
    raise _not_here(name, hub_id, revision, cache, package)


def _has_any(folder: Path, graphs: Sequence[str]) -> bool:
    return not graphs or any(any(folder.glob(pattern)) for pattern in graphs)


def cache_folder(hf_home: str | None, environ: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models, by its own rules, so that a look costs no import of it."""
    for key in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(key):
            return Path(environ[key]).expanduser()
    home = hf_home or environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _local_folder(name: str) -> Path | None:
    """The folder `name` is a path of. Raises ModelUnavailable if it can only be a path and is no model's folder."""
    if not name or "\0" in name or "://" in name:
        return None
    only_a_path = name.startswith(("/", ".", "~")) or "\\" in name or Path(name).is_absolute()
    path = _expanded(name)
    if _is_model_folder(path):
        return path
    if only_a_path:
        why = "has no config.json" if path.is_dir() else "is not a folder"
        raise ModelUnavailable(f"model {name}: {why}; give a folder in sentence-transformers or transformers layout")
    return None


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~nobody
        return Path(name)


def _is_model_folder(path: Path) -> bool:
    try:
        return (path / "config.json").is_file() or (path / "modules.json").is_file()
    except OSError:  # a name too long for a path, a folder nobody may look into
        return False


def check_names(name: str, revision: str | None) -> None:
    """Raises ModelUnavailable for what cannot be a hub id, or a revision of one."""
    if "://" in name:
        raise ModelUnavailable(f"model {name}: URLs are not fetched; give a hub id such as BAAI/bge-small-en-v1.5")
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        raise ModelUnavailable(f"model {name[:200]!r} is neither a folder nor a hub id such as BAAI/bge-small-en-v1.5")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelUnavailable(f"revision {revision[:200]!r} is not the name of a branch, tag or commit")


def _cached(hub_id: str, revision: str | None, cache: Path) -> Path | None:
    if not (cache / f"models--{hub_id.replace('/', '--')}").is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415  0.15 s

    for file in ("config.json", "modules.json"):
        found = try_to_load_from_cache(hub_id, file, cache_dir=cache, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def _package_name(name: str) -> str | None:
    return None if "/" in name else re.sub(r"[-.]", "_", name).lower()


def _package_folder(package: str) -> Path | None:
    """The `model/` of an installed package, which is not imported: the files are wanted, not the code."""
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / "model"
        if _is_model_folder(folder):
            return folder
    return None


def _not_here(name: str, hub_id: str, revision: str | None, cache: Path, package: str | None) -> ModelUnavailable:
    at = f" at revision {revision}" if revision else ""
    looked = [f"no folder {name}", f"no {hub_id}{at} in {cache}"]
    if package:
        looked.append(
            f"packages carry no revision ({package})" if revision else f"no package {package} with a model in it"
        )
    return ModelUnavailable(
        f"model {name}{at} is not on this machine ({'; '.join(looked)}) and the hub is not "
        "asked; download it once without offline, or give the path of its folder"
    )


def _download(
    hub_id: str, revision: str | None, cache: Path, token: str | None, graphs: Sequence[str], *, otherwise: Path | None
) -> Path:
    """The snapshot, after fetching what is missing of it; `otherwise`, an older look at it, if the hub is silent."""
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415  0.15 s

    log.info("downloading %s to %s", hub_id, cache)
    fetch = partial(snapshot_download, hub_id, cache_dir=cache, token=token)
    try:
        found = Path(fetch(revision=revision, allow_patterns=[*DOWNLOADED, *graphs]))
        for needed_files in (needed_torch_files, needed_graph_files):
            if more := needed_files(found):
                fetch(revision=_commit(found) or revision, allow_patterns=list(more))
        return found
    except errors.GatedRepoError as error:
        why = f"model {hub_id} is gated: accept its terms on the hub and set a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RepositoryNotFoundError as error:
        why = f"model {hub_id} is no folder and not on the hub, or private and in need of a token (HF_TOKEN)"
        raise ModelUnavailable(why) from error
    except errors.RevisionNotFoundError as error:
        raise ModelUnavailable(f"model {hub_id} has no revision {revision} on the hub") from error
    except Exception as error:  # network, disk, Xet: what the library lets through differs between its versions
        if otherwise:
            log.warning(
                "%s could not be compared with the hub (%s): using what is cached", hub_id, type(error).__name__
            )
            return otherwise
        why = (
            f"model {hub_id} is neither a folder nor in {cache}, and the hub could not be reached "
            f"({type(error).__name__}); check the network, or give the path of a folder"
        )
        raise ModelUnavailable(why) from error


def _commit(snapshot: Path) -> str | None:
    return snapshot.name if _COMMIT.fullmatch(snapshot.name) else None
