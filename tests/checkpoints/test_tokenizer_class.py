"""The tables of tokenizer classes, compared with those of the installed transformers."""

from __future__ import annotations

import pytest

from vectord.checkpoints.tokenizer_class import CLASSES, FILE, OF_ARCHITECTURES, OVERRULING, find_class
from vectord.compute.networks.network import ARCHITECTURES
from vectord.text.tokenizer_settings import CLASSES as FOLLOWED


@pytest.mark.parametrize("name", CLASSES)
def test_each_name_selects_the_class_of_transformers(name: str) -> None:
    """With and without "Fast"; names that transformers does not have use tokenizer.json unchanged."""
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    for saved in (name, f"{name}Fast"):
        theirs = tokenizer_class_from_name(saved)
        known = "TokenizersBackend" if theirs is None else theirs.__name__
        assert CLASSES[name] == {"PythonBackend": FILE, "ConvBertTokenizer": "BertTokenizer"}.get(known, known)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_has_the_class_of_transformers(architecture: str) -> None:
    """The class, where a folder names none, and whether it overrules the folder."""
    from transformers.models.auto import tokenization_auto

    registered = tokenization_auto.TOKENIZER_MAPPING_NAMES
    for model_type in {architecture, architecture.replace("_", "-")}:
        theirs = registered.get(model_type)
        assert OF_ARCHITECTURES.get(model_type) == (None if theirs is None else CLASSES[theirs])
        wrong = model_type in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
        assert (model_type in OVERRULING) == wrong


@pytest.mark.parametrize("name", sorted({*CLASSES.values()} - {FILE}))
def test_each_class_has_types_as_in_transformers(name: str) -> None:
    """A class without token_type_ids in model_input_names has zeros."""
    import transformers

    assert FOLLOWED[name].has_types == ("token_type_ids" in getattr(transformers, name).model_input_names)
    assert "token_type_ids" not in transformers.PreTrainedTokenizerFast.model_input_names


def test_the_name_of_a_folder_precedes_its_model_type() -> None:
    """Except where transformers knows that folders name a wrong class."""
    assert find_class({"model_type": "bert"}, {}) == ("BertTokenizer", False)
    assert find_class({"model_type": "bert", "tokenizer_class": "RobertaTokenizer"}, {}) == ("RobertaTokenizer", True)
    assert (
        find_class({"model_type": "bert"}, {"tokenizer_class": "DistilBertTokenizerFast"})[0] == "DistilBertTokenizer"
    )
    assert find_class({"model_type": "qwen2"}, {"tokenizer_class": "LlamaTokenizer"})[0] == "Qwen2Tokenizer"
    assert find_class({"model_type": "mistral"}, {"tokenizer_class": "LlamaTokenizer"})[0] == FILE
    assert find_class({"model_type": "made-up"}, {})[0] == FILE
    assert find_class({}, {}) == (None, False)
