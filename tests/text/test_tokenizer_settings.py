"""Each setting of tokenizer_config.json, changed alone: the tokens of transformers' AutoTokenizer, or a refusal."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.models import CORPUS
from tests.text.makers import make_spec, read

from vectord.errors import ModelUnavailable, Untokenizable
from vectord.text.tokenizer import TextEncoder
from vectord.text.tokenizer_file import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEXTS = (
    "The quick brown fox",
    "Élan naïve 你好  foo",
    "old <pad> tree [MASK] near </s> fox <mask> sing <|endoftext|> water [PAD] x",
    "",
)
PAIR = ("quick fox", "lazy dog")


# --- tiny tokenizers ------------------------------------------------------------------------------------------


def _bpe(specials: list[str]) -> dict[str, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([CORPUS, " fox"], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


def _words(specials: list[str]) -> dict[str, int]:
    letters = "abcdefghijklmnopqrstuvwxyzTÉé你好"
    words = [*specials, *letters, *(f"##{letter}" for letter in letters), *sorted(set(CORPUS.split()))]
    return {word: i for i, word in enumerate(words)}


def write_bert(folder: Path) -> None:
    from transformers import BertTokenizer

    BertTokenizer(vocab=_words(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])).save_pretrained(folder)


def write_mpnet(folder: Path) -> None:
    from transformers import MPNetTokenizer

    MPNetTokenizer(vocab=_words(["<s>", "<pad>", "</s>", "[UNK]", "<mask>"])).save_pretrained(folder)


def write_roberta(folder: Path) -> None:
    from transformers import RobertaTokenizer

    RobertaTokenizer(**_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])).save_pretrained(folder)


def write_xlm_roberta(folder: Path) -> None:
    from transformers import XLMRobertaTokenizer

    pieces = [f"▁{word}" for word in sorted(set(CORPUS.split()))] + ["▁", *"abcdefghijklmnopqrstuvwxyzTÉé你好[]<>/|"]
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocab = [(piece, 0.0) for piece in specials] + [(piece, -1.0 - i / 10) for i, piece in enumerate(pieces)]
    XLMRobertaTokenizer(vocab=vocab).save_pretrained(folder)


def write_qwen2(folder: Path) -> None:
    from transformers import Qwen2Tokenizer

    Qwen2Tokenizer(**_bpe(["<|endoftext|>", "<|im_start|>"]), pad_token="<|endoftext|>").save_pretrained(folder)


def write_llama(folder: Path) -> None:
    from transformers import LlamaTokenizer

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *sorted(set(CORPUS) - {" "})]
    merges = [("▁", "f"), ("▁f", "o"), ("▁fo", "x"), ("f", "o"), ("fo", "x"), ("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    vocab = {piece: i for i, piece in enumerate([*pieces, *("".join(merge) for merge in merges)])}
    LlamaTokenizer(vocab=vocab, merges=merges).save_pretrained(folder)


def put_around(folder: Path, first: list[str], last: list[str]) -> None:
    """Let tokenizer.json put these tokens around a text."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*first, *last])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=tokens,
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def write_qwen2_with_end(folder: Path) -> None:
    """gte-Qwen2's tokenizer.json."""
    write_qwen2(folder)
    put_around(folder, [], ["<|endoftext|>"])


def write_llama_with_beginning(folder: Path) -> None:
    write_llama(folder)
    put_around(folder, ["<s>"], [])


def write_file_class(folder: Path) -> None:
    """A class that uses tokenizer.json unchanged, as ModernBERT's."""
    write_roberta(folder)
    put_around(folder, ["<s>"], ["</s>", "</s>"])
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))


FAMILIES: Mapping[str, Callable[[Path], None]] = {
    "bert": write_bert,
    "distilbert": write_bert,
    "mpnet": write_mpnet,
    "roberta": write_roberta,
    "xlm-roberta": write_xlm_roberta,
    "qwen2": write_qwen2,
    "llama": write_llama,
    "qwen2 with an end": write_qwen2_with_end,
    "llama with a beginning": write_llama_with_beginning,
    "modernbert": write_file_class,
}


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    FAMILIES[request.param](folder)
    config = {"model_type": request.param.split()[0], "type_vocab_size": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# --- changes --------------------------------------------------------------------------------------------------

_TOKEN = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
_OF_EVERY_CLASS: Mapping[str, Any] = {
    "additional_special_tokens": ["fox"],
    "extra_special_tokens": ["fox"],
    "added_tokens_decoder": {"7": {**_TOKEN, "content": "fox"}},
    "clean_up_tokenization_spaces": True,
    "split_special_tokens": True,
    "truncation_side": "left",
    "padding_side": "left",
    "model_max_length": 8,
    "model_input_names": ["input_ids", "attention_mask"],
    "do_basic_tokenize": False,
    "never_split": ["fox"],
    "use_fast": False,
    "sp_model_kwargs": {"enable_sampling": True},
    "spaces_between_special_tokens": True,
}


def changes(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings of the tokenizer's class and of every class, each with another value than it has."""
    import transformers

    own = getattr(transformers, config["tokenizer_class"])
    for name, parameter in inspect.signature(own.__init__).parameters.items():
        if name in {"self", "args", "kwargs", "vocab", "merges", "_spm_precompiled_charsmap"}:
            continue
        value = config.get(name, parameter.default)
        if name.endswith("_token"):
            yield name, "fox"
            yield name, {"__type": "AddedToken", **_TOKEN, "content": "fox", "lstrip": True}
            if isinstance(value, str):
                yield name, {"__type": "AddedToken", **_TOKEN, "content": value, "lstrip": True, "rstrip": True}
        else:
            yield from ((name, changed) for changed in (True, False) if changed is not value)
    yield from _OF_EVERY_CLASS.items()
    yield from ((f"add_{name}_token", value) for name in ("bos", "eos") for value in (True, False))
    yield "tokenizer_class", None
    yield "tokenizer_class", "PreTrainedTokenizerFast"
    yield "tokenizer_class", "DistilBertTokenizer"
    yield "tokenizer_class", "RobertaTokenizer"


def ours(folder: Path) -> list[tuple[list[int], list[int]]]:
    tokenizer: Tokenizer = load_tokenizer(folder / "tokenizer.json", lowercase=False)
    encodings = [*(tokenizer.encode(text) for text in TEXTS), tokenizer.encode(*PAIR)]
    return [(encoding.ids, encoding.type_ids) for encoding in encodings]


def reference(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Without type ids the networks use zeros."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    encodings = [*(tokenizer(text) for text in TEXTS), tokenizer(*PAIR)]
    assert all(set(encoding["attention_mask"]) <= {1} for encoding in encodings)
    return [
        (encoding["input_ids"], encoding.get("token_type_ids", [0] * len(encoding["input_ids"])))
        for encoding in encodings
    ]


def test_every_setting_is_followed_or_refused(saved: Path, tmp_path: Path) -> None:
    """A refusal names the setting."""
    config = json.loads((saved / "tokenizer_config.json").read_text())
    folder = Path(shutil.copytree(saved, tmp_path / "changed"))
    assert ours(folder) == reference(folder)
    wrong = []
    for name, value in changes(config):
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, name: value}))
        try:
            got = ours(folder)
        except ModelUnavailable as error:
            if name not in str(error):
                wrong.append((name, value, str(error)))
            continue
        if got != reference(folder):
            wrong.append((name, value, "other tokens"))
    assert wrong == []


@pytest.mark.parametrize("name", ["qwen2", "qwen2 with an end"])
def test_the_end_token_of_gte_qwen2(name: str, tmp_path: Path) -> None:
    """Its own tokenizer class, which is not run, puts eos_token after each text by add_eos_token."""
    FAMILIES[name](tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    own = {"add_eos_token": True, "auto_map": {"AutoTokenizer": ["x.Qwen2Tokenizer", "x.Qwen2TokenizerFast"]}}
    path.write_text(json.dumps({**config, **own}))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json", lowercase=False)
    end = tokenizer.token_to_id("<|endoftext|>")
    for text in TEXTS:
        assert tokenizer.encode(text).ids == [*tokenizer.encode(text, add_special_tokens=False).ids, end]
    path.write_text(json.dumps({**config, **own, "eos_token": None}))
    with pytest.raises(ModelUnavailable, match="add_eos_token need a bos_token and eos_token"):
        load_tokenizer(tmp_path / "tokenizer.json", lowercase=False)


@pytest.mark.parametrize("value", ["old <pad> tree", [0, 1, 2]], ids=["text", "ids"])
def test_a_padding_token_in_a_text_is_refused_where_positions_skip_it(value: Any, tmp_path: Path) -> None:
    """RoBERTa and MPNet of transformers give later tokens other positions than the networks here; BERT does not."""
    write_roberta(tmp_path)

    def encoder(model_type: str) -> TextEncoder:
        return TextEncoder(make_spec(tmp_path / "tokenizer.json", model_type=model_type))

    assert 1 in read(encoder("bert"), [value])[0].ids
    for model_type in ("roberta", "mpnet"):
        assert 1 not in read(encoder(model_type), ["old tree"])[0].ids
        with pytest.raises(Untokenizable, match="contains <pad>, this model's padding token") as caught:
            read(encoder(model_type), ["old tree", value])
        assert caught.value.index == 1


def test_a_frame_of_another_class_is_refused(tmp_path: Path) -> None:
    """transformers' class of RoBERTa puts <s> and </s> around a text whatever tokenizer.json says."""
    write_roberta(tmp_path)
    put_around(tmp_path, [], ["</s>"])
    with pytest.raises(
        ModelUnavailable, match=r"tokenizer_class RobertaTokenizer makes of cls_token '<s>' and sep_token"
    ):
        load_tokenizer(tmp_path / "tokenizer.json", lowercase=False)
