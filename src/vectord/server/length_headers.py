"""The honest length contract in headers, whatever the dialect: how much of the inputs the model saw.

`x-vectord-tokens-seen`       tokens the inputs have, all together
`x-vectord-tokens-kept`       tokens the model read
`x-vectord-truncated`         how many inputs were cut
`x-vectord-truncated-inputs`  which, from 0, comma separated; the first 100; only if any was

Called by handler.py for every result that read texts.
"""

from __future__ import annotations

from vectord.schema import Usage

TOKENS_SEEN = "x-vectord-tokens-seen"
TOKENS_KEPT = "x-vectord-tokens-kept"
TRUNCATED = "x-vectord-truncated"
TRUNCATED_INPUTS = "x-vectord-truncated-inputs"

MAX_INDICES = 100  # bounds the header to some 700 bytes; proxies commonly refuse answers above 4 kB of headers


def length_headers(usage: Usage) -> dict[str, str]:
    seen = kept = 0
    cut = []
    for index, length in enumerate(usage.lengths):
        seen += length.seen
        kept += length.kept
        if length.truncated:
            cut.append(index)
    headers = {TOKENS_SEEN: str(seen), TOKENS_KEPT: str(kept), TRUNCATED: str(len(cut))}
    if cut:
        headers[TRUNCATED_INPUTS] = ",".join(map(str, cut[:MAX_INDICES]))
    return headers
