"""Fetches models from the hub for a running server, as its settings allow: `HubPuller(config)`."""

from __future__ import annotations

import os
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from vectord.checkpoints.catalogue import hub_id_of
from vectord.checkpoints.hub import cache_folder
from vectord.checkpoints.pulling import Cached, Progress, check_names, find_cached, pull
from vectord.checkpoints.spec import Located
from vectord.config import Config, ModelConfig
from vectord.engine.models.backend import required_graphs, settle_device
from vectord.engine.models.opening import find_lock, open_model
from vectord.engine.models.registry import ModelSource
from vectord.engine.models.requested import named, requested_models
from vectord.errors import Forbidden, InvalidField, ModelUnavailable

LIMIT_BYTES = 50 * 2**30  # of the files of a model that a running server fetches


class HubPuller:
    """A Puller."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def check(self, name: str) -> None:
        """Raises Forbidden and InvalidField if the settings exclude the model, without contacting the hub."""
        config = self._config.model
        if config.offline:
            raise Forbidden("This server is offline: it fetches no model from the hub.")
        try:
            check_names(name, None)
            (requested,) = requested_models(config, [name])
            find_lock(requested, config)
        except ModelUnavailable as error:
            raise InvalidField("{reason}.", field="model", reason=error.message) from error
        hub_id = hub_id_of(requested.model)
        if not any(fnmatchcase(hub_id, pattern) for pattern in config.pull_allow):
            raise Forbidden("The setting pull_allow of this server excludes the model.", field="model")

    def fetch(self, name: str, progress: Progress) -> ModelSource:
        """Blocks while it downloads. Raises StartError."""
        config = self._config
        model, device = config.model, settle_device(config.device)
        (requested,) = named(requested_models(model, [name]), ModelConfig())
        located = None
        if not Path(requested.model).is_absolute():  # the operator's catalogue or model_path may name a folder
            folder = pull(
                hub_id_of(requested.model),
                revision=model.revision,
                cache=cache_folder(model.hf_home, os.environ),
                token=model.hf_token,
                progress=progress,
                graphs=required_graphs(device),
                held_to=find_lock(requested, model),
                limit_bytes=LIMIT_BYTES,
            ).folder
            located = Located(folder=folder, model_id=requested.model, revision=folder.name, source="hub")
        # The base of an adapter is pulled by its own name, which pull_allow then judges.
        return open_model(requested, replace(config, model=replace(model, offline=True), device=device), located)

    def find_cached(self, name: str) -> Cached:
        """Raises InvalidField for a model that is not in the cache, such as a folder of the operator's."""
        config = self._config.model
        hub_id = hub_id_of(requested_models(config, [name])[0].model)
        try:
            found = find_cached(hub_id, cache_folder(config.hf_home, os.environ))
        except ModelUnavailable as error:
            raise InvalidField("{reason}.", field="model", reason=error.message) from error
        if found is None:
            raise InvalidField("The model {model} is not in the cache of this server.", field="model", model=hub_id)
        return found
