"""W3C's traceparent: which trace a request belongs to, as its sender says. https://www.w3.org/TR/trace-context/

Read by handler.py for the exemplars of /metrics, whether or not this server sends traces of its own (tracing.py does).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HEADER = "traceparent"
SAMPLED = 1

_form = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(-.*)?", re.ASCII)


def sampled_trace_id(headers: Mapping[str, str]) -> str | None:
    """The sender's trace, if there is one that is kept; names in lower case."""
    sent = headers.get(HEADER)
    if sent is None:
        return None
    found = _form.fullmatch(sent.strip())
    if found is None or sent.startswith("ff") or not found[1].strip("0") or not int(found[2], 16) & SAMPLED:
        return None
    return found[1]
