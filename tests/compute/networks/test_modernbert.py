"""ModernBERT's windows, its old and new configs, and its biases, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.compute.networks.case import numpy_answer, padded_states, texts_of
from tests.compute.networks.tiny_encoders import CASES, change_config, reference_model, write_tiny

TEXTS = texts_of(100, 17, 1, 9)
THETAS = {"rope_parameters": {"full_attention": {"rope_theta": 700.0}, "sliding_attention": {"rope_theta": 30.0}}}


def assert_like_transformers(folder: Path) -> np.ndarray:
    got = numpy_answer(CASES["modernbert"].spec(folder, max_tokens=128), TEXTS)
    want = padded_states(reference_model(folder, "ModernBert"), TEXTS, filler=1)
    np.testing.assert_allclose(got, want, atol=1e-5)  # it rotates queries and keys in float32
    return got


def test_the_farthest_token_of_a_window_is_seen(tmp_path: Path) -> None:
    """With one local layer of half-width 3, the token at distance 3 matters, and the token at distance 4 does not."""
    folder = write_tiny(
        tmp_path, "ModernBert", num_hidden_layers=1, layer_types=["sliding_attention"], local_attention=6
    )
    spec = CASES["modernbert"].spec(folder)
    text = texts_of(12)[0]
    before = numpy_answer(spec, [text])
    after = numpy_answer(spec, [[*text[:4], (text[4] + 1) % 5 + 10, *text[5:]]])
    changed = np.abs(before - after).max(axis=1) > 1e-6
    np.testing.assert_array_equal(np.flatnonzero(changed), np.arange(1, 8))


def test_older_configs_are_equivalent(tmp_path: Path) -> None:
    """The published keys, from before transformers 5, give the same network."""
    folder = write_tiny(tmp_path, "ModernBert", **THETAS)
    want = assert_like_transformers(folder)
    older: dict[str, Any] = {"layer_types": None, "rope_parameters": None, "global_attn_every_n_layers": 3}
    change_config(folder, **older, global_rope_theta=700.0, local_rope_theta=30.0)
    np.testing.assert_array_equal(numpy_answer(CASES["modernbert"].spec(folder, max_tokens=128), TEXTS), want)


def test_windows_without_a_base_of_their_own_have_the_global_one(tmp_path: Path) -> None:
    """`local_rope_theta: null`, as transformers 4 reads it."""
    same = {kind: {"rope_theta": 700.0} for kind in ("full_attention", "sliding_attention")}
    folder = write_tiny(tmp_path, "ModernBert", rope_parameters=same)
    want = assert_like_transformers(folder)
    change_config(folder, rope_parameters=None, global_rope_theta=700.0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "local_rope_theta": None}))
    np.testing.assert_array_equal(numpy_answer(CASES["modernbert"].spec(folder, max_tokens=128), TEXTS), want)


def test_a_config_without_positions_has_the_published_ones(tmp_path: Path) -> None:
    """Both bases, and every third layer with full attention, are transformers' defaults."""
    folder = write_tiny(tmp_path, "ModernBert")
    want = assert_like_transformers(folder)
    change_config(folder, layer_types=None, rope_parameters=None)
    np.testing.assert_array_equal(numpy_answer(CASES["modernbert"].spec(folder, max_tokens=128), TEXTS), want)
