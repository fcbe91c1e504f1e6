"""Passages cut to a number of their own tokens, as texts: whatever reads them then, alone or in pairs, reads so much.

tokenizer.py calls this on the tokenising threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Encoding

from vectord.text.encoded import CutText
from vectord.text.plain import PlainTokenizer, Source, cut_source
from vectord.text.truncation import Limit


def cut_texts(plain: PlainTokenizer, texts: Sequence[str], indexes: Sequence[int], limit: Limit) -> Iterator[CutText]:
    """Those of `texts` that `indexes` name, each cut at its end to `limit.max_tokens`. Raises Untokenizable."""
    sources = [cut_source(texts[i], limit, i) for i in indexes]
    encodings = plain.encodings(sources, limit, specials=False, offsets=True)
    for source, encoding in zip(sources, encodings, strict=True):
        if len(encoding.ids) <= limit.max_tokens:
            yield CutText(source.text, 0, source.characters_cut)
        else:
            yield _cut(plain, source, encoding, limit.max_tokens)


def _cut(plain: PlainTokenizer, source: Source, encoding: Encoding, max_tokens: int) -> CutText:
    """Where the cut goes through a character's tokens, or changes those before it, they may be too many: then it goes
    a character back."""
    stops = [stop for _, stop in encoding.offsets[:max_tokens]]
    while stops:
        text = source.text[: stops[-1]]
        found = len(plain.content(text))
        if found <= max_tokens:
            return CutText(text, len(encoding.ids) - found, source.characters_cut)
        while stops and stops[-1] >= len(text):
            stops.pop()
    return CutText("", len(encoding.ids), source.characters_cut)
