"""How many tokens a text may have: `read_max_tokens(folder, ...)`. reader.py asks at start.

As sentence-transformers decides: max_seq_length if the model says one, else the tokenizer's model_max_length, and never
more than the network has positions.
"""

from __future__ import annotations

import logging
from typing import Any

from vectord.checkpoints.model_folder import ModelFolder
from vectord.errors import ModelUnavailable

log = logging.getLogger("vectord.checkpoints")

# These count positions from pad_token_id + 1, so that many rows of the table are never a token's.
_POSITIONS_AFTER_PAD = frozenset({"camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})
_PAD_TOKEN_ID = 1  # where their config.json does not say
_POSITION_KEYS = ("n_positions", "max_position_embeddings")  # nomic, which may have both; most
_NO_LIMIT = 2**20  # transformers writes 1e30 for "no limit"
_USUAL_LIMIT = 512


def read_max_tokens(folder: ModelFolder, *, max_seq_length_counts: bool) -> int:
    """Specials included. Raises ModelUnavailable if the positions leave no room for a token."""
    positions = _positions(folder)
    own = _sane(folder.transformer_module.get("max_seq_length")) if max_seq_length_counts else None
    own = own or _sane(folder.tokenizer_config.get("model_max_length"))
    limits = [limit for limit in (own, positions) if limit is not None]
    if not limits:
        log.warning("%s does not say how long a text may be: using %d tokens", folder.root, _USUAL_LIMIT)
    max_tokens = min(limits, default=_USUAL_LIMIT)
    if max_tokens < 1:
        raise ModelUnavailable(f"{folder.config_path}: max_position_embeddings leaves no room for a token")
    return max_tokens


def _positions(folder: ModelFolder) -> int | None:
    """How far the network counts; None if it does not say."""
    positions = next((limit for key in _POSITION_KEYS if (limit := _sane(folder.config.get(key)))), None)
    if positions is not None and folder.model_type in _POSITIONS_AFTER_PAD:
        pad = folder.config.get("pad_token_id")
        return positions - 1 - (pad if type(pad) is int and pad >= 0 else _PAD_TOKEN_ID)
    return positions


def _sane(limit: Any) -> int | None:
    return int(limit) if type(limit) in (int, float) and 1 <= limit <= _NO_LIMIT else None
