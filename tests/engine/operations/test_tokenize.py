"""The tokens of texts, and back."""

from __future__ import annotations

from tests.engine.fakes import MAX_TOKENS, FakeBackend, serving

from vectord.schema import Caller, DecodeRequest, TokenizeRequest

ANYONE = Caller()


async def test_tokens_and_back():
    """Neither needs a device."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        tokenized = await engine.answer(TokenizeRequest(inputs=["ab", "c"]), ANYONE)
        ids = [[token.id for token in row] for row in tokenized.tokens]
        decoded = await engine.answer(DecodeRequest(ids=ids), ANYONE)
    assert decoded.texts == ["ab", "c"]
    assert tokenized.usage.tokens == 3
    assert tokenized.max_input_tokens == MAX_TOKENS
    assert not backend.batches
