"""sentence-transformers' Router: queries and documents through different modules, in router_config.json.

Supported are sparse models whose queries need no network, because the weight of each of their tokens is in a table
(SparseStaticEmbedding; opensearch-neural-sparse-encoding-doc), dense models with a network or a static table for
each of the two, and models with one route for all texts, next to those of images. Others are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vectord.checkpoints.checkpoint import find_weights, open_checkpoint
from vectord.checkpoints.config_keys import harmless, refuse_unread
from vectord.checkpoints.files.read import Settings, read_json_object, read_settings
from vectord.checkpoints.vocabulary import TOKENIZER_LIMIT_BYTES, vocab_txt_json
from vectord.errors import ModelUnavailable

ROUTERS = ("Router", "Asym")
FILE = "router_config.json"
TABLE = "SparseStaticEmbedding"
WEIGHT = "weight"  # the tensor of the table, (V,)

Entries = Sequence[Mapping[str, str]]  # of modules, as modules.json would list them

_SUPPORTED = (
    f"supported are the routes query (a network, a StaticEmbedding or one {TABLE}) and document with a default of the "
    "two, and one route text or a default_route alone"
)


def read_routes(path: Path) -> tuple[Entries, Entries, bool]:
    """Return the modules of documents, those of queries, () if they take the others, and whether texts without a kind
    are queries. path: the Router's file."""
    settings = read_settings(path)
    types, structure, parameters = (settings.get(key) for key in ("types", "structure", "parameters"))
    if not isinstance(types, dict) or not isinstance(structure, dict) or not isinstance(parameters, dict):
        raise ModelUnavailable(f"{path}: types, structure and parameters must be objects")
    refuse_unread(settings, {})
    routes = {
        str(name)[:40]: [_module(path, types, place) for place in (places[:8] if isinstance(places, list) else ())]
        for name, places in structure.items()
    }
    if not routes or not all(routes.values()):
        raise ModelUnavailable(f"{path}: structure has the routes {', '.join(routes)[:200]}; {_SUPPORTED}")
    arguments = Settings(path, parameters)
    default, takes_first = arguments.get("default_route"), arguments.flag("allow_empty_key", True)
    if default is None and takes_first:
        default = next(iter(routes))
    if arguments.get("route_mappings") or not isinstance(default, str) or default not in routes:
        raise ModelUnavailable(
            f"{path}: parameters with the default_route {repr(default)[:40]}, or route_mappings; {_SUPPORTED}"
        )
    refuse_unread(arguments, {})
    usual = "text" if "text" in routes else default  # a text is sought by its kind, then as a text
    two = {"query", "document"}
    if two <= routes.keys() and usual in two:
        return routes["document"], routes["query"], usual == "query"
    if two.isdisjoint(routes):
        return routes[usual], (), False
    raise ModelUnavailable(f"{path}: structure has the routes {', '.join(routes)[:200]}; {_SUPPORTED}")


def read_query_weights(place: Path, tokenizer: Path, max_tokens: int, allowed: frozenset[str]) -> Path:
    """Return the file with the weight of each of a query's tokens. place: the folder of the module.

    tokenizer, max_tokens: of the documents.
    """
    settings = read_settings(place / "config.json", optional=True, allowed=allowed)
    refuse_unread(settings, harmless("training only", "frozen"))
    own = place / tokenizer.name
    if _tokens(own) != _tokens(tokenizer):
        raise ModelUnavailable(f"{own}: a tokenizer of queries that differs from the documents' is not supported")
    own_settings = read_settings(own.with_name("tokenizer_config.json"), optional=True)
    limit = own_settings.get("model_max_length")
    if limit is not None and not (type(limit) in (int, float) and limit >= max_tokens):
        raise ModelUnavailable(
            f"{own_settings.path}: model_max_length {repr(limit)[:80]} is not supported; it must be at "
            f"least the documents' {max_tokens}"
        )
    file, *others = find_weights(place)
    tensors = open_checkpoint((file,))
    shapes = {name: weight.shape for name, weight in tensors.items()}
    tensors.close()
    if others or len(shapes.get(WEIGHT, ())) != 1:
        raise ModelUnavailable(f"{file}: expected one tensor {WEIGHT} with one number for each token")
    if foreign := sorted(shapes.keys() - {WEIGHT}):
        raise ModelUnavailable(f"{file}: tensor {foreign[0][:100]} is not one of a {TABLE}")
    return file


def _module(path: Path, types: Mapping[str, Any], place: object) -> dict[str, str]:
    class_path = types.get(place) if isinstance(place, str) else None
    if not isinstance(class_path, str):
        raise ModelUnavailable(f"{path}: types has no class path of the module {repr(place)[:80]} of structure")
    return {"type": class_path, "path": str(place)}


def _tokens(tokenizer: Path) -> Any:
    """The parts of a tokenizer.json, given or made from vocab.txt, that decide a text's tokens without special ones."""
    if tokenizer.suffix == ".txt":
        fields = json.loads(vocab_txt_json(tokenizer))
    else:
        fields = read_json_object(tokenizer, limit_bytes=TOKENIZER_LIMIT_BYTES)
    return {key: fields.get(key) for key in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
