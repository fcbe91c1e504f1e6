"""BERT (MiniLM, BGE v1.5, E5, GTE v1), ERNIE, ELECTRA, DistilBERT and ALBERT. Names as in transformers.

RoBERTa (roberta.py) and JinaBERT (jina_bert_v2.py) share most keys and names of tensors.
"""

from __future__ import annotations

from msgspec.structs import replace

from vectord.checkpoints.config_keys import harmless
from vectord.compute.networks import encoder
from vectord.compute.networks.architecture import LayerNames
from vectord.compute.networks.encoder import EncoderArchitecture, HeadNames, classify_first
from vectord.compute.networks.heads import Classifier, Projection
from vectord.compute.networks.transformer import Transformer, TransformerSpec
from vectord.compute.networks.weights import POOLER, HarmlessTensors
from vectord.compute.ops.base import T


class Bert(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("ERNIE's, without vectors of tasks", "task_type_vocab_size"),
    }
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        POOLER,
        *encoder.BERT_WORDS_HEAD,
        HarmlessTensors("ELECTRA's other head of pretraining", r"discriminator_predictions\..+"),
        *encoder.words_head(r"(generator_predictions|generator_lm_head)\..+", r"generator_lm_head\.weight"),
        encoder.DENSE_CLASSIFIER,
    )
    PREFIXES = ("", "bert.", "ernie.", "electra.")
    NAMES = LayerNames(
        prefix="encoder.layer",
        attention=("attention.self.query", "attention.self.key", "attention.self.value"),
        attention_out="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        mlp=("intermediate.dense",),
        down="output.dense",
        output_norm="output.LayerNorm",
    )
    HEAD = HeadNames(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        decoder="cls.predictions.decoder",
        bias="cls.predictions.bias",
    )

    def load(self) -> Transformer[T]:
        self.require("position_embedding_type", "absolute")
        return self.read(self.NAMES, first_position=0)


class Ernie(Bert[T]):
    def load(self) -> Transformer[T]:
        if not self.flag("use_task_id", False):
            return super().load()
        self.require("position_embedding_type", "absolute")
        # transformers gives task 0 to every token, so its vector is added to those of the types.
        width, count = self.spec.hidden_size, self.size("task_type_vocab_size")
        tasks = self.body.array("embeddings.task_type_embeddings.weight", count, width)
        types = self.body.array(encoder.TYPES, self.spec.types, width) + tasks[0]
        return self.read(self.NAMES, first_position=0, types=self.body.constant(encoder.TYPES, types))


class Electra(Bert[T]):
    """Its word vectors may be narrower than its states."""

    HEAD = HeadNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        decoder="generator_lm_head",
        activation="gelu",
    )

    @property
    def table_width(self) -> int:
        return self.size("embedding_size")

    def load(self) -> Transformer[T]:
        self.require("position_embedding_type", "absolute")
        widen = None if self.table_width == self.spec.hidden_size else "embeddings_project"
        return self.read(self.NAMES, first_position=0, widen=widen)

    def classifier(self, labels: int) -> Classifier[T]:
        return classify_first(self.weights, self.spec.hidden_size, labels, "gelu")


class DistilBert(EncoderArchitecture[T]):
    HARMLESS = {
        **encoder.HARMLESS,
        **harmless("training only", "qa_dropout seq_classif_dropout"),
        **harmless("the checkpoint has the table", "sinusoidal_pos_embds"),
    }
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        *encoder.words_head(r"vocab_(transform|layer_norm|projector)\.(weight|bias)", r"vocab_projector\.weight"),
        HarmlessTensors("the layer before the classifier", r"pre_classifier\.(weight|bias)", unless="scores"),
    )
    PREFIXES = ("", "distilbert.")
    KEYS = {
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_act": "activation",
    }
    NAMES = LayerNames(
        prefix="transformer.layer",
        attention=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        attention_out="attention.out_lin",
        attention_norm="sa_layer_norm",
        mlp=("ffn.lin1",),
        down="ffn.lin2",
        output_norm="output_layer_norm",
    )
    HEAD = HeadNames(dense="vocab_transform", norm="vocab_layer_norm", decoder="vocab_projector")

    def read_spec(self) -> TransformerSpec:
        return encoder.read_spec(self.config, keys=self.KEYS, norm_eps=1e-12)  # the norm's is not in any config

    def load(self) -> Transformer[T]:
        return self.read(self.NAMES, first_position=0)

    def classifier(self, labels: int) -> Classifier[T]:
        width = self.spec.hidden_size
        dense = Projection(self.weights.linear("pre_classifier", width, width), "relu")
        return Classifier("cls", (dense, Projection(self.weights.linear("classifier", width, labels))))


class Albert(EncoderArchitecture[T]):
    """Layers share their weights, in groups."""

    HARMLESS = encoder.HARMLESS
    HARMLESS_TENSORS = (
        *encoder.HARMLESS_TENSORS,
        HarmlessTensors("the body's pooler, which only classifiers read", r"(\w+\.)?pooler\.(weight|bias)"),
        HarmlessTensors("another head of pretraining", r"sop_classifier\..+"),
        *encoder.words_head(r"predictions\..+", r"predictions\.(decoder\.(weight|bias)|bias)"),
    )
    PREFIXES = ("", "albert.")
    NAMES = LayerNames(
        prefix="encoder.albert_layer_groups.{group}.albert_layers",
        attention=("attention.query", "attention.key", "attention.value"),
        attention_out="attention.dense",
        attention_norm="attention.LayerNorm",
        mlp=("ffn",),
        down="ffn_output",
        output_norm="full_layer_layer_norm",
    )
    HEAD = HeadNames(
        dense="predictions.dense", norm="predictions.LayerNorm", decoder="predictions.decoder", bias="predictions.bias"
    )

    @property
    def table_width(self) -> int:
        return self.size("embedding_size")

    def load(self) -> Transformer[T]:
        layers = self.spec.layers
        count = self.size("num_hidden_groups", 1, at_most=layers)
        inner = self.size("inner_group_num", 1, at_most=1024)
        names = [replace(self.NAMES, prefix=self.NAMES.prefix.format(group=group)) for group in range(count)]
        groups = [[self.read_layer(own, i) for i in range(inner)] for own in names]
        return self.read(
            self.NAMES,
            first_position=0,
            widen="encoder.embedding_hidden_mapping_in",
            layers=[layer for i in range(layers) for layer in groups[int(i / (layers / count))]],
        )

    def classifier(self, labels: int) -> Classifier[T]:
        width = self.spec.hidden_size
        pooler = Projection(self.body.linear("pooler", width, width), "tanh")
        return Classifier("cls", (pooler, Projection(self.weights.linear("classifier", width, labels))))
