"""models/composites.py: names over several models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.opening import FAKE, minilm_folder, opened

from vectord.checkpoints.spec import Colbert
from vectord.config import DEFAULT_MODEL, Config, ModelConfig
from vectord.engine.models import open_composites, open_models, read_composites
from vectord.engine.models.registry import CompositeSource, ModelSource
from vectord.errors import ConfigError


def test_a_composite_names_served_models_by_any_of_their_names() -> None:
    """NAME=dense:MODEL+tokens:MODEL becomes a composite over served names."""
    served = opened(DEFAULT_MODEL, served_model_name=("text-embed",))
    (composite,) = read_composites(("smart=dense:all-MiniLM-L6-v2+tokens:text-embed",), served)
    assert (composite.name, dict(composite.members)) == ("smart", {"dense": "text-embed", "tokens": "text-embed"})


@pytest.mark.parametrize(
    ("value", "message"),
    {
        "no members": ("smart", "expected NAME=dense:MODEL"),
        "unknown kind": ("smart=thick:text-embed", "got 'thick'"),
        "a kind twice": ("smart=dense:text-embed+dense:text-embed", "each once"),
        "not its vectors": ("smart=colbert:text-embed", "makes no colbert vectors"),
        "unknown model": ("smart=dense:nobody", "no model is served as 'nobody'"),
        "a model's name": ("text-embed=dense:text-embed", "is the name of a model"),
    }.values(),
    ids=str,
)
def test_a_composite_that_cannot_be_is_refused(value: str, message: str) -> None:
    """The start stops with what was expected."""
    with pytest.raises(ConfigError, match=message):
        read_composites((value,), opened(DEFAULT_MODEL, served_model_name=("text-embed",)))


# --- dense_embedding_model ------------------------------------------------------------------------------------


def like_bge_m3(model: ModelSource) -> ModelSource:
    """The same model as if it made all three vectors."""
    outputs = frozenset({"dense", "tokens", "lexical", "colbert"})
    return replace(model, spec=replace(model.spec, outputs=outputs, colbert=Colbert(dimensions=8)))


def composites(tmp_path: Path, **said: Any) -> list[CompositeSource]:
    """Of models that embed densely, and those called m3 that make all three vectors, in the configuration's order."""
    folders = {name: str(minilm_folder(tmp_path / name)) for name in ("qwen", "m3", "other", "m3-too")}
    config = ModelConfig(
        **{
            key: folders[value] if isinstance(value, str) else tuple(map(folders.get, value))
            for key, value in said.items()
        }
    )
    models = open_models(Config(model=config, device=FAKE))
    return open_composites(config, [like_bge_m3(model) if "m3" in model.name else model for model in models])


@pytest.mark.parametrize(
    "said",
    [
        {"dense_embedding_model": "qwen", "models": ("m3",)},
        {"dense_embedding_model": "qwen", "models": ("other", "m3")},
        {"dense_embedding_model": "qwen", "models": ("m3", "qwen")},
        {"dense_embedding_model": "qwen", "models": ("m3",), "default_embedding_model": "other"},
        {"dense_embedding_model": "qwen", "models": ("m3",), "default_embedding_model": "qwen"},
    ],
    ids=str,
)
def test_dense_vectors_of_one_model_stand_beside_the_others_of_another(tmp_path: Path, said: dict[str, Any]) -> None:
    """Smart Embedder with Qwen: sparse and ColBERT vectors still come from BGE-M3."""
    (composite,) = composites(tmp_path, **said)
    assert composite.name == "qwen+m3"
    assert composite.members == {"dense": "qwen", "sparse": "m3", "colbert": "m3"}


@pytest.mark.parametrize(
    "said",
    [
        {"models": ("qwen", "m3")},
        {"dense_embedding_model": "m3", "models": ("m3",)},
        {"dense_embedding_model": "m3", "models": ("m3-too",)},
        {"dense_embedding_model": "qwen", "models": ("other",)},
    ],
    ids=["nothing said", "all of one model", "its own suffice", "nobody has others"],
)
def test_one_model_alone_needs_no_composite(tmp_path: Path, said: dict[str, Any]) -> None:
    """DENSE_EMBEDDING_MODEL=BAAI/bge-m3 is Smart Embedder's default, and means BGE-M3 for everything."""
    assert composites(tmp_path, **said) == []


def test_a_dense_model_without_dense_vectors_is_refused(tmp_path: Path) -> None:
    """A reranker cannot be meant."""
    config = ModelConfig(dense_embedding_model=DEFAULT_MODEL, models=(str(minilm_folder(tmp_path / "m3")),))
    first, second = open_models(Config(model=config, device=FAKE))
    scores = replace(first, spec=replace(first.spec, outputs=frozenset({"scores"})))
    with pytest.raises(ConfigError, match=r"dense_embedding_model: .* makes no dense vectors"):
        open_composites(config, [scores, like_bge_m3(second)])
