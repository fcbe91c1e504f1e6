"""Fetches a model from the hub for a running server, as its settings allow: the Puller of pulls.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from vectord.checkpoints.hub import cache_folder, check_names
from vectord.checkpoints.lock import LockedModel
from vectord.checkpoints.pulling import Cached, Progress, Pulled, find_cached, pull
from vectord.checkpoints.spec import Located, RequestedModel
from vectord.config import Config, ModelConfig
from vectord.engine.models.backend import required_graphs, settle_device
from vectord.engine.models.opening import find_lock, open_model
from vectord.engine.models.registry import ModelSource
from vectord.engine.models.requested import hub_id_of, named, requested_models
from vectord.errors import Forbidden, InvalidField, ModelUnavailable


def pull_configured(
    hub_id: str,
    config: ModelConfig,
    graphs: Sequence[str],
    progress: Progress,
    held_to: LockedModel | None,
    *,
    limit_bytes: int | None = None,
) -> Pulled:
    """Fetch the model into the configured cache, at the configured revision. See checkpoints.pulling.pull."""
    check_names(hub_id, config.revision)
    return pull(
        hub_id,
        revision=config.revision,
        cache=cache_folder(config.hf_home, os.environ),
        token=config.hf_token,
        progress=progress,
        graphs=graphs,
        held_to=held_to,
        limit_bytes=limit_bytes,
    )


class ModelPuller:
    """Fetches models as the settings of the server say."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def check(self, name: str) -> None:
        """Raises Forbidden and InvalidField if the settings exclude the model, without contacting the hub."""
        config = self._config.model
        if config.offline:
            raise Forbidden("This server is offline: it fetches no model from the hub.")
        try:
            check_names(name, None)
            requested = self._requested(name)
            find_lock(requested, config)
        except ModelUnavailable as error:
            raise InvalidField("{reason}.", field="model", reason=error.message) from error
        hub_id = hub_id_of(requested.model)
        if not any(fnmatchcase(hub_id, pattern) for pattern in config.pull_allow):
            raise Forbidden("The setting pull_allow of this server excludes the model.", field="model")

    def fetch(self, name: str, progress: Progress) -> ModelSource:
        """Blocks while it downloads. Raises StartError."""
        config, device = self._config.model, settle_device(self._config.device)
        (requested,) = named([self._requested(name)], ModelConfig())
        located = None
        if not Path(requested.model).is_absolute():  # the operator's catalogue or model_path may name a folder
            hub_id, graphs = hub_id_of(requested.model), required_graphs(device)
            lock, limit = find_lock(requested, config), config.pull_limit
            folder = pull_configured(hub_id, config, graphs, progress, lock, limit_bytes=limit).folder
            located = Located(folder=folder, model_id=requested.model, revision=folder.name, source="hub")
        # The base of an adapter is pulled by its own name, which pull_allow and pull_limit then judge.
        config = replace(config, offline=True)
        return open_model(requested, replace(self._config, model=config, device=device), located)

    def find_cached(self, name: str) -> Cached:
        """Raises InvalidField for a model that is not in the cache, such as a folder of the operator's."""
        requested = self._requested(name)
        hub_id = hub_id_of(requested.model)
        try:
            check_names(hub_id, None)
        except ModelUnavailable as error:
            raise InvalidField("{reason}.", field="model", reason=error.message) from error
        found = find_cached(hub_id, cache_folder(self._config.model.hf_home, os.environ))
        if found is None:
            raise InvalidField("The model {model} is not in the cache of this server.", field="model", model=hub_id)
        return found

    def _requested(self, name: str) -> RequestedModel:
        """The model with this name in the operator's catalogue and model_path, else on the hub."""
        alone = replace(
            self._config.model,
            models=(name,),
            default_embedding_model=None,
            dense_embedding_model=None,
            reranker_model=None,
            rerankers=(),
        )
        return requested_models(alone)[0]
