"""Token ids in place of a text: the model's own, or another vocabulary's, which must not be embedded as noise.

A list of numbers does not say whose it is. The model's own tokenizer puts special tokens around every text; the ids
that OpenAI's clients send have none, and are read by the table that they come from or refused. tokenizer.py calls
this on the tokenising threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from vectord.errors import ForeignIds
from vectord.schema import Input, TextLength
from vectord.text.encoded import EncodedText
from vectord.text.foreign import ForeignTable
from vectord.text.plain import PlainTokenizer
from vectord.text.truncation import Limit, fit_tokens


class GivenIds:
    """How one model takes ids."""

    def __init__(self, plain: PlainTokenizer, foreign: ForeignTable | None) -> None:
        """foreign: the vocabulary of ids that are not the model's; None: those are refused."""
        self._plain = plain
        self._foreign = foreign

    def known(self, value: Input, limit: Limit, index: int) -> Input:
        """The input as it is, but foreign ids as the text that they stand for. Raises ForeignIds, InputTooLong."""
        if isinstance(value, str) or not len(value) or self._are_own(value, limit, index):
            return value
        if self._foreign is None:
            raise _not_own(limit, index)
        _check_count(value, limit, index)
        text = self._foreign.decode(value)
        if text is None:
            raise _not_own(limit, index)
        return text

    def text(self, ids: Sequence[int], limit: Limit, index: int) -> str:
        """The text of the model's own ids. Raises EmptyInput, InputTooLong, Untokenizable."""
        _check_count(ids, limit, index)
        checked = self._plain.check_ids(ids, limit, index).tolist()
        text: str = self._plain.tokenizer.decode(checked, skip_special_tokens=True)
        return text

    def take(self, ids: Sequence[int], specials: tuple[int, int], limit: Limit, index: int) -> EncodedText:
        """The model's own ids as they are, but for what is too long. Raises EmptyInput, InputTooLong, Untokenizable.

        specials: how many at either end are never cut, if they are there.
        """
        checked = self._plain.check_ids(ids, limit, index)
        kept = fit_tokens(checked, specials if self._plain.frame.holds(ids) else (0, 0), limit, index)
        return EncodedText(kept, self._plain.no_types(kept), TextLength(len(checked), len(kept)))

    def _are_own(self, ids: Sequence[int], limit: Limit, index: int) -> bool:
        """Whether these ids (one at least) are what this tokenizer makes of a text, as far as that can be told."""
        if any(self._plain.frame.specials):
            return self._plain.frame.holds(ids)
        _check_count(ids, limit, index)
        if not 0 <= min(ids) <= max(ids) < self._plain.vocab_size:
            return False
        text = self._plain.tokenizer.decode(list(ids), skip_special_tokens=False)
        again: list[int] = self._plain.content(text).tolist()
        return again == list(ids)


def _check_count(ids: Sequence[int], limit: Limit, index: int) -> None:
    """Raises InputTooLong for more ids than a text may have characters: decoding them would cost as much."""
    if len(ids) > limit.max_characters:
        raise limit.too_long(index, limit.max_characters, "token ids", len(ids))


def _not_own(limit: Limit, index: int) -> ForeignIds:
    message = (
        f"{limit.place(index)} has token ids that are not this model's: they do not stand between its special tokens. "
        "Send texts (LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False)), or ids of this model's own "
        "tokenizer, special tokens included"
    )
    return ForeignIds(message, field=limit.field, index=index)
