"""The honest length contract in headers, whatever the dialect: how much of the inputs was read.

`x-vectord-tokens-seen`       tokens the inputs have, all together
`x-vectord-tokens-kept`       tokens that were read
`x-vectord-truncated`         how many inputs were cut
`x-vectord-truncated-inputs`  which, from 0, comma separated; the first 100; only if any was

Where several models read the same inputs, each with its own tokenizer, tokens are summed over the models, and an input
counts as cut if any of them cut it. Called by result_headers.py for every result that read texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from vectord.schema import TextLength

TOKENS_SEEN = "x-vectord-tokens-seen"
TOKENS_KEPT = "x-vectord-tokens-kept"
TRUNCATED = "x-vectord-truncated"
TRUNCATED_INPUTS = "x-vectord-truncated-inputs"

NOTHING = TextLength(0, 0)
MAX_INDICES = 100  # bounds the header to some 700 bytes; proxies commonly refuse answers above 4 kB of headers


def length_headers(*readings: Sequence[TextLength], query: TextLength = NOTHING) -> dict[str, str]:
    """readings: of each model, the lengths of all inputs; query: what was read once beside them."""
    seen, kept = query.seen, query.kept
    cut = set()
    for lengths in readings:
        for index, length in enumerate(lengths):
            seen += length.seen
            kept += length.kept
            if length.truncated:
                cut.add(index)
    headers = {TOKENS_SEEN: str(seen), TOKENS_KEPT: str(kept), TRUNCATED: str(len(cut))}
    if cut:
        headers[TRUNCATED_INPUTS] = ",".join(map(str, sorted(cut)[:MAX_INDICES]))
    return headers
