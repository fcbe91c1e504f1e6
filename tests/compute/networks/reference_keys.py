"""The keys of config.json that transformers reads, by model_type: `python -m tests.compute.networks.reference_keys`
writes checkpoints/reference_keys.json for the installed version, with defaults of its config classes.

A key counts as read if it is a field or an alias of the config class, or a name that the sources of the model, or those
that all models share, read from a config or from the keyword arguments that become one. Names in any string of
configuration_utils.py count too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from vectord.checkpoints.config_keys import REFERENCE_KEYS
from vectord.checkpoints.kinds.encoder_decoder import T5GEMMA2
from vectord.checkpoints.kinds.pages import PAGES
from vectord.checkpoints.kinds.qwen_vl import GENERATIONS
from vectord.checkpoints.kinds.towers import TOWERS
from vectord.compute.networks.network import ARCHITECTURES

SOURCES = Path(transformers.__file__).parent
SHARED = (
    *("cache_utils", "configuration_utils", "masking_utils", "modeling_layers"),
    *("modeling_rope_utils", "modeling_utils", "quantizers/auto", "utils/quantization_config"),
    *("integrations/flash_attention", "integrations/moe", "integrations/sdpa_attention"),
)
READ = re.compile(
    r"""config\.(\w+)|(?:get|has)attr\(\s*[\w.]*config,\s*"(\w+)"|kwargs(?:\.pop|\.get|\.setdefault|)[(\[]\s*"(\w+)\""""
    r"""|config_dict[.\w]*[(\[]\s*"(\w+)"|"(\w+)" in (?:kwargs|config_dict)"""
)

# The keys of config classes whose defaults complete the sections of a config.json.
LAYERS = "hidden_size intermediate_size num_hidden_layers num_attention_heads"
DECODER = f"{LAYERS} num_key_value_heads vocab_size max_position_embeddings rms_norm_eps"
QWEN_IMAGES = "depth hidden_size hidden_act num_heads in_channels patch_size spatial_merge_size temporal_patch_size"
DEFAULTS = {
    **dict.fromkeys(
        [f"{family}_text_model" for family in ("clip", "siglip", "siglip2")], f"{LAYERS} hidden_act layer_norm_eps"
    ),
    **dict.fromkeys(
        [f"{family}_vision_model" for family in ("clip", "siglip", "siglip2")],
        f"{LAYERS} hidden_act layer_norm_eps num_channels",
    ),
    "gemma": f"{DECODER} head_dim hidden_act",
    "gemma4_vision": f"{LAYERS} num_key_value_heads head_dim hidden_activation rms_norm_eps",
    "modernbert": f"{LAYERS} hidden_activation max_position_embeddings norm_eps vocab_size",
    "qwen2_vl_text": f"{DECODER} hidden_act max_window_layers",
    "qwen2_vl_vision": f"{QWEN_IMAGES} embed_dim mlp_ratio",
    "qwen2_5_vl_text": f"{DECODER} hidden_act max_window_layers",
    "qwen2_5_vl_vision": f"{QWEN_IMAGES} intermediate_size out_hidden_size window_size fullatt_block_indexes",
    "qwen3_vl_text": f"{DECODER} head_dim hidden_act",
    "qwen3_vl_vision": (
        f"{QWEN_IMAGES} intermediate_size out_hidden_size num_position_embeddings deepstack_visual_indexes"
    ),
    "t5gemma2_decoder": f"{DECODER} head_dim hidden_activation query_pre_attn_scalar sliding_window",
}


def reference_keys() -> Mapping[str, Any]:
    shared = {field.name for field in fields(PreTrainedConfig)}
    for name in SHARED:
        shared |= read_names(SOURCES / f"{name}.py")
    shared |= set(re.findall(r'"([a-z_]+)"', (SOURCES / "configuration_utils.py").read_text("utf-8")))
    architectures = {*ARCHITECTURES, *TOWERS, T5GEMMA2, *(pages.model_type for pages in PAGES.values())}
    architectures |= {name for generation in GENERATIONS for name in (generation, f"{generation}_text")}
    types = {name for architecture in architectures for name in (architecture, architecture.replace("_", "-"))}
    own = {name: keys_of(CONFIG_MAPPING[name]) - shared for name in sorted(types.intersection(CONFIG_MAPPING))}
    model_types = {name: " ".join(sorted(keys)) for name, keys in own.items()}
    configs = {name: CONFIG_MAPPING[name]().to_dict() for name in DEFAULTS}
    defaults = {name: {key: configs[name][key] for key in keys.split()} for name, keys in DEFAULTS.items()}
    return {
        "transformers": transformers.__version__,
        "shared": " ".join(sorted(shared)),
        "model_types": model_types,
        "defaults": json.loads(json.dumps(defaults)),  # lists in place of tuples
    }


def keys_of(config_class: type[PreTrainedConfig]) -> set[str]:
    folder = Path(str(sys.modules[config_class.__module__].__file__)).parent
    found = {field.name for field in fields(config_class)} | set(config_class.attribute_map)
    return found.union(*map(read_names, folder.glob("[cm]o*.py")))  # configuration_*, modeling_* and modular_*


def read_names(path: Path) -> set[str]:
    return {name for names in READ.findall(path.read_text("utf-8")) for name in names if name}


if __name__ == "__main__":
    REFERENCE_KEYS.write_text(json.dumps(reference_keys(), indent=1) + "\n", "utf-8")
