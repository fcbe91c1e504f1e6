"""Language models that judge a pair by whether they would say "no" or "yes": Qwen3-Reranker and what was made of it.

kind.py asks `is_judge`, reader.py calls `add_judge`, classifier.py `find_template`, at start. A chat template is never
run: what stands around query and document is the catalogue's, and a model that wants other words is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from vectord.checkpoints import catalogue
from vectord.checkpoints.catalogue import YesNoTemplate
from vectord.checkpoints.files.json_file import read_json_object
from vectord.checkpoints.kinds.score_activation import read_score_activation
from vectord.checkpoints.model_folder import ModelFolder
from vectord.checkpoints.modules import wrong_order
from vectord.checkpoints.spec import ModelSpec, YesNo
from vectord.checkpoints.vocabulary import find_ids
from vectord.errors import ModelUnavailable

_ORIGINAL = "Qwen/Qwen3-Reranker-0.6B"
# How the original begins its question; a conversion keeps it in its chat template.
_TELLING = "Judge whether the Document meets the requirements based on the Query and the Instruct provided"
_CHAT_TEMPLATE_LIMIT_BYTES = 2**20


def is_judge(folder: ModelFolder) -> bool:
    """Whether a language model without modules.json is a reranker. Raises ModelUnavailable for one that is, by its
    name, and nobody here knows how to ask."""
    if find_template(folder) is not None:
        return True
    if "rerank" in folder.name:
        raise ModelUnavailable(
            f"{folder.root}: a reranker that is no Qwen3-Reranker, and how it wants to be asked is not known here; "
            "the task option says what to use it for all the same"
        )
    return False


def find_template(folder: ModelFolder) -> YesNoTemplate | None:
    """The words the model wants around a pair; None if it is not made from Qwen3-Reranker."""
    if folder.entry is not None and folder.entry.yes_no is not None:
        return folder.entry.yes_no
    if folder.model_type == "qwen3" and ("rerank" in folder.name or _TELLING in _chat_template(folder)):
        return _original_template()
    return None


def add_judge(folder: ModelFolder, spec: ModelSpec) -> ModelSpec:
    """Raises ModelUnavailable: modules in another order, answers that are no tokens, another template."""
    template = find_template(folder)
    if template is None and folder.modules:
        raise ModelUnavailable(f"{folder.root}: how this reranker wants to be asked is not known here")
    template = template or _original_template()  # a plain language model, of which the operator asked it
    return replace(
        spec,
        outputs=frozenset({"scores"}),
        score_activation=read_score_activation(folder, labels=1),
        yes_no=fill(template, _saved_ids(folder) or _answer_ids(spec.tokenizer, template)),
    )


def fill(template: YesNoTemplate, token_ids: tuple[int, int] | None) -> YesNo:
    """The template in the spec's words. token_ids: of its answers; None if a classifier's head gives the score."""
    return YesNo(
        prefix=template.prefix,
        body=template.body,
        suffix=template.suffix,
        instruction=template.instruction,
        token_ids=token_ids,
    )


def _original_template() -> YesNoTemplate:
    entry = catalogue.find(_ORIGINAL)
    assert entry is not None and entry.yes_no is not None, "the catalogue lost Qwen3-Reranker"
    return entry.yes_no


def _chat_template(folder: ModelFolder) -> str:
    path = folder.transformer / "chat_template.jinja"
    if path.is_file():
        try:
            with path.open("rb") as file:
                return file.read(_CHAT_TEMPLATE_LIMIT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    template = folder.tokenizer_config.get("chat_template")
    return template if isinstance(template, str) else ""


def _saved_ids(folder: ModelFolder) -> tuple[int, int] | None:
    """Of "no" and "yes", as sentence-transformers' LogitScore has them."""
    if not folder.modules:
        return None
    if [module.kind for module in folder.modules] != ["Transformer", "LogitScore"]:
        raise wrong_order(folder.root, folder.modules, supported="Transformer, LogitScore")
    path = folder.modules[1].folder / "config.json"
    fields = read_json_object(path)
    no, yes = fields.get("false_token_id"), fields.get("true_token_id")
    if not _is_id(no) or not _is_id(yes):
        raise ModelUnavailable(f"{path}: true_token_id and false_token_id must both be ids of tokens")
    return no, yes


def _is_id(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**31


def _answer_ids(tokenizer: Path, template: YesNoTemplate) -> tuple[int, int]:
    no, yes = template.answers
    ids = find_ids(tokenizer, template.answers)
    if len(ids) < 2:
        raise ModelUnavailable(f"{tokenizer}: {no!r} and {yes!r} are not both tokens of its vocabulary")
    return ids[no], ids[yes]
