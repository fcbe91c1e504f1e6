"""RoBERTa, XLM-RoBERTa (BGE-M3, multilingual E5, BGE rerankers), CamemBERT, jina-embeddings-v3, and MPNet.

RoBERTa's layers are BERT's. Names as in transformers; and those of xlm-roberta-flash, the own code of some models,
which has rotary positions in some of them. In MPNet, each attention score gets a bias that depends on the distance of
query and key.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.bert import Bert
from vectord.compute.networks.encoder import EncoderArchitecture, HeadNames, classify_first
from vectord.compute.networks.heads import Classifier
from vectord.compute.networks.rotary import read_plain_rotary, rotary_table
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import FREQUENCIES, POOLER
from vectord.compute.ops.base import T
from vectord.errors import ModelUnavailable

# Of xlm-roberta-flash.
FLASH_NAMES = LayerNames(
    prefix="encoder.layers",
    attention="mixer.Wqkv",
    attention_out="mixer.out_proj",
    attention_norm="norm1",
    mlp=("mlp.fc1",),
    down="mlp.fc2",
    output_norm="norm2",
)
TRANSFORMERS_NAMES = replace(encoder.TRANSFORMERS_NAMES, mlp=("mlp.fc1",), down="mlp.fc2", mlp_bias=True)


class Roberta(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("speed and memory only", "use_reentrant"),
        **harmless(
            "of adapters, which checkpoints/adapters.py reads",
            "load_trained_adapters lora_adaptations lora_alpha lora_rank task_instructions",
        ),
        **harmless("training only", "lora_dropout_p lora_main_params_trainable"),
        **harmless("only with rotary positions", "rotary_emb_base"),
    }
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        POOLER,
        *encoder.LM_HEAD,
        encoder.DENSE_CLASSIFIER,
        FREQUENCIES,
    )
    PREFIXES = ("", "roberta.")
    HEAD = HeadNames(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder",
        bias="lm_head.bias",
        activation="gelu",
    )

    @cached_property
    def is_jina(self) -> bool:
        return self.model_type == "jina_embeddings_v3"

    @cached_property
    def is_rotary(self) -> bool:
        return self.is_jina or self.choice("position_embedding_type", ("absolute", "rotary"), "absolute") == "rotary"

    @cached_property
    def first_position(self) -> int:
        """The first token's row in the table of positions: they count from after the padding token's id."""
        return self.size("pad_token_id", 1, at_least=0) + 1

    def read_spec(self) -> TransformerSpec:
        spec, first = super().read_spec(), self.first_position
        if self.is_rotary:
            return spec
        if spec.max_tokens <= first:
            raise ModelUnavailable(
                f"config.json: max_position_embeddings {spec.max_tokens} leaves no room after pad_token_id {first - 1}"
            )
        return replace(spec, max_tokens=spec.max_tokens - first)

    def load(self) -> Transformer[T]:
        is_flash = f"{FLASH_NAMES.prefix}.0.{FLASH_NAMES.attention}.weight" in self.body
        rotary = None
        if self.is_rotary:
            if not self.is_jina and not is_flash:
                raise ModelUnavailable(
                    "config.json: position_embedding_type rotary is supported with xlm-roberta-flash's tensors only"
                )
            theta = self.number("rotary_emb_base", 20_000.0 if self.is_jina else 10_000.0)
            turns = read_plain_rotary(self.config, theta=theta, positions=self.spec.max_tokens)
            rotary = rotary_table(self.body, turns, self.spec.head_size, self.spec.max_tokens)
        return self.read(
            FLASH_NAMES if is_flash else TRANSFORMERS_NAMES if self.is_jina else Bert.NAMES,
            norm="emb_ln" if is_flash else "embeddings.LayerNorm",
            first_position=None if rotary else self.first_position,
            rotary=rotary,
        )

    def classifier(self, labels: int) -> Classifier[T]:
        return classify_first(self.weights, self.spec.hidden_size, labels)


class MPNet(EncoderArchitecture[T]):
    HARMLESS = encoder.HARMLESS
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        POOLER,
        *encoder.LM_HEAD,
        encoder.DENSE_CLASSIFIER,
    )
    PREFIXES = ("", "mpnet.")
    LEAST_TYPES = None
    FIRST_POSITION = 2  # transformers counts from after padding's id 1 for every config
    BUCKETS = 32
    NAMES = LayerNames(
        prefix="encoder.layer",
        attention=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        attention_out="attention.attn.o",
        attention_norm="attention.LayerNorm",
        mlp=("intermediate.dense",),
        down="output.dense",
        output_norm="output.LayerNorm",
    )
    HEAD = Roberta.HEAD

    def read_spec(self) -> TransformerSpec:
        spec, first = super().read_spec(), self.FIRST_POSITION
        if spec.max_tokens <= first:
            raise ModelUnavailable(f"config.json: max_position_embeddings must be above {first}")
        return replace(spec, max_tokens=spec.max_tokens - first)

    def load(self) -> Transformer[T]:
        self.require("relative_attention_num_buckets", self.BUCKETS)
        most = self.spec.max_tokens
        table = self.body.array("encoder.relative_attention_bias.weight", self.BUCKETS, self.spec.heads)
        by_distance = table[buckets(np.arange(1 - most, most), self.BUCKETS)]  # (2 * max_tokens - 1, heads)
        bias = self.body.constant("attention_bias", by_distance.T)
        return self.read(self.NAMES, first_position=self.FIRST_POSITION, attention_bias=bias)

    def classifier(self, labels: int) -> Classifier[T]:
        return classify_first(self.weights, self.spec.hidden_size, labels)


def buckets(distances: npt.NDArray[np.int64], count: int, farthest: int = 128) -> npt.NDArray[np.int64]:
    """The bucket of each distance of key less query, as T5 has it: the first half up to the query, the others after it.

    Distances below count / 4 have one bucket each, larger ones share ever wider buckets, from `farthest` on one. In
    float32 in transformers' order: with the defaults buckets begin at 16, 32 and 64, and another rounding would move
    these.
    """
    half, exact = count // 2, count // 4
    distance = abs(distances)
    octaves = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    wide = exact + (octaves / np.float32(math.log(farthest / exact)) * np.float32(half - exact)).astype(np.int64)
    return np.where(distances > 0, half, 0) + np.where(distance < exact, distance, np.minimum(wide, half - 1))
