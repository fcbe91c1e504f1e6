"""Where the sentences of a text begin. Pure; called by chunking.py for each document.

A rule, and no library: sentences are packed into chunks, so a wrong boundary after "Dr." matters only where a chunk
happens to end, and what libraries there are take seconds for, or are not kept up, or bring ICU. Linear in the text's
length, whatever is in it: each match begins where the one before ended and gives nothing back.
"""

from __future__ import annotations

import re

# Ends a sentence before a blank: Latin, then the full stops of Arabic, Urdu, Hindi, Armenian, Amharic and Khmer.
_MARKS = ".!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362\u17d4"
_WIDE_MARKS = "\u3002\uff01\uff1f\uff61"  # ends one anywhere: Chinese and Japanese write no blanks
_CLOSERS = "\"')}\\]\u201d\u2019\u00bb\u300d\u300f\uff09\u3011\u300b"  # quotes and brackets that may stand behind
_ENDS = re.compile(rf"(?P<mark>[{_MARKS}]++|[{_WIDE_MARKS}]++)[{_CLOSERS}]*+(?P<blank>\s*+)|\n\s*+")


def sentence_starts(text: str) -> list[int]:
    """Rising character offsets, 0 and the text's end left out; the blanks behind a sentence belong to it.

    A sentence ends at . ! ? and their like before a blank, at the wide ones anywhere, and at an empty line. Not at a
    full stop before a small letter, as in "approx. three" (the rule SB8 of Unicode's annex 29, shortened).
    """
    return [match.end() for match in _ENDS.finditer(text) if match.end() < len(text) and _ends(text, match)]


def _ends(text: str, match: re.Match[str]) -> bool:
    mark = match["mark"]
    if mark is None:
        return match[0].count("\n") > 1
    if mark[0] in _WIDE_MARKS or match["blank"].count("\n") > 1:
        return True
    small_follows = mark[-1] in ".\u2026" and text[match.end()].islower()
    return bool(match["blank"]) and not small_follows
