"""How Rust prints a Duration, which is how embedding_server tells its timings."""

from __future__ import annotations

_UNITS = (("s", 9), ("ms", 6), ("\u00b5s", 3))  # each with its nanoseconds, as a power of ten


def rust_duration(seconds: float) -> str:
    """`seconds`, 0 or more, in the largest unit of which it has one: "2.000001s", "1.5ms", "120µs", "950ns", "0ns".

    Rounded to whole nanoseconds, then exact. Source: the Debug of Rust's std::time::Duration.
    """
    nanoseconds = round(seconds * 10**9)
    for unit, power in _UNITS:
        whole, rest = divmod(nanoseconds, 10**power)
        if whole:
            decimals = f"{rest:0{power}}".rstrip("0")
            return f"{whole}.{decimals}{unit}" if decimals else f"{whole}{unit}"
    return f"{nanoseconds}ns"
