"""embedding_server: the form of its durations. cases/embedding_server.json has the rest."""

from __future__ import annotations

import pytest

from vectord.products.embedding_server import rust_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        pytest.param(0.0, "0ns", id="none"),
        pytest.param(4e-10, "0ns", id="less than half a nanosecond"),
        pytest.param(950e-9, "950ns", id="nanoseconds"),
        pytest.param(1e-6, "1µs", id="one microsecond"),
        pytest.param(120e-6, "120µs", id="microseconds"),
        pytest.param(1.5e-6, "1.5µs", id="a fraction of them"),
        pytest.param(0.000999999, "999.999µs", id="just below a millisecond"),
        pytest.param(0.0009999996, "1ms", id="rounded up to one"),
        pytest.param(2e-3, "2ms", id="milliseconds"),
        pytest.param(0.0100205, "10.0205ms", id="zeros within"),
        pytest.param(1.0, "1s", id="one second"),
        pytest.param(2.000001, "2.000001s", id="seconds"),
        pytest.param(86400.5, "86400.5s", id="a day"),
    ],
)
def test_durations_have_rusts_form(seconds, text):
    """The largest unit below the duration, all digits but trailing zeros, and the micro sign U+00B5."""
    assert rust_duration(seconds) == text
