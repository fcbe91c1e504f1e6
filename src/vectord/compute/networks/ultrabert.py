"""`model_type: ultrabert`: UltraBERT-Embed. Names as in transformers/models/ultrabert/modeling_ultrabert.py.

A EuroBERT of which two of three layers attend to a window; each kind of layer has its own rotary base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from vectord.checkpoints.config_keys import Harmless, harmless
from vectord.compute.networks import decoder, facts
from vectord.compute.networks.decoder import Family
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.rotary import LAYER_KINDS, read_layer_rotary, read_sliding
from vectord.compute.networks.transformer import Transformer
from vectord.compute.networks.weights import HarmlessTensors, WeightReader
from vectord.compute.ops.base import Ops, T
from vectord.errors import ModelUnavailable

HARMLESS: Mapping[str, Harmless] = {
    **decoder.HARMLESS,
    **harmless("only heads over the vocabulary read it", "prediction_head_size"),
    **harmless("attention_windows replaces it, or no layer slides", "sliding_window"),
    **harmless("rope_parameters replaces it", "rope_theta"),
}
HARMLESS_TENSORS = (
    *decoder.HARMLESS_TENSORS,
    HarmlessTensors("the head over the vocabulary", r"(head\.(linear1|linear2|decoder)|cls)\.weight"),
)
_PREFIXES = ("", "ultrabert.", "model.")
_THETAS = (2_560_000.0, 10_000.0)  # by LAYER_KINDS


def load(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T]) -> Transformer[T]:
    spec, bias = decoder.read_spec(config), facts.flag(config, "attention_bias", False)
    windows = _windows(config, spec.layers)
    full, sliding = (
        read_layer_rotary(config, kind, theta=theta, positions=spec.max_tokens)
        for kind, theta in zip(LAYER_KINDS, _thetas(config, windows), strict=True)
    )
    family = Family(
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=facts.flag(config, "mlp_bias", False),
        windows=windows,
        rotary=full,
        sliding_rotary=sliding,
    )
    return decoder.load_decoder(spec, family, weights.after_prefix(_PREFIXES, decoder.WORDS), ops)


def classifier(config: Mapping[str, Any], weights: WeightReader[T], ops: Ops[T], labels: int) -> Classifier[T]:
    pooling = cast(Literal["cls", "mean"], facts.choice(config, "classifier_pooling", ("cls", "mean"), "cls"))
    return Classifier(pooling, (Projection(weights.linear("classifier", facts.size(config, "hidden_size"), labels)),))


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """AttentionSpec.window of each layer. attention_windows, from before transformers had the class, lists them."""
    listed = config.get("attention_windows")
    if listed is None:
        sliding = read_sliding(config, [(i + 1) % 3 != 0 for i in range(layers)])
        window = facts.size(config, "sliding_window", 128) if any(sliding) else None
        return tuple(window if slides else None for slides in sliding)
    sizes = {size for size in listed if size} if isinstance(listed, list) and len(listed) == layers else {None}
    if len(sizes) > 1 or not all(type(size) is int and size > 0 for size in sizes) or config.get("layer_types"):
        raise ModelUnavailable(
            f"config.json: attention_windows must be {layers} times one window or none, without layer_types"
        )
    return tuple(size or None for size in listed)


def _thetas(config: Mapping[str, Any], windows: Sequence[int | None]) -> tuple[float, float]:
    """The rotary base of layers that attend to all, and of those with a window. rope_theta lists that of each layer."""
    listed = config.get("rope_theta")
    if listed is None or config.get("rope_parameters") is not None:
        return _THETAS
    bases: tuple[set[float], set[float]] = (set(), set())
    for window, theta in zip(windows, listed if isinstance(listed, list) else (), strict=False):
        bases[window is not None].add(facts.number({"rope_theta": theta}, "rope_theta", 0.0, at_least=1.0))
    if not isinstance(listed, list) or len(listed) != len(windows) or max(map(len, bases)) > 1:
        raise ModelUnavailable(f"config.json: rope_theta must be {len(windows)} numbers, one for each kind of layer")
    full, sliding = (next(iter(found), usual) for found, usual in zip(bases, _THETAS, strict=True))
    return full, sliding
