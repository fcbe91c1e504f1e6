"""/vectord/tokenize and /vectord/decode."""

import msgspec

from vectord.products.common.body import Count
from vectord.products.common.dialect import Call, Incoming, Rendered, Routes
from vectord.products.common.vectors import json_answer
from vectord.products.vectord.fields import TimingsAnswer, UsageAnswer, usage_answer
from vectord.schema import DecodeRequest, DecodeResult, Token, TokenizeRequest, TokenizeResult

ROUTES = Routes()


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    inputs: str | list[str]
    model: str | None = None
    add_special_tokens: bool | None = True
    prompt_name: str | None = None


class TokenizedInput(msgspec.Struct):
    index: int
    tokens: list[Token]


class TokenizeAnswer(msgspec.Struct):
    model: str
    data: list[TokenizedInput]
    usage: UsageAnswer
    timings: TimingsAnswer


@ROUTES.post(
    "/vectord/tokenize",
    computes=None,
    answer=TokenizeAnswer,
    summary="Tokenize texts",
    example={"inputs": "Hello, world"},
)
def parse_tokenize(body: TokenizeBody, incoming: Incoming) -> Call:
    request = TokenizeRequest(
        inputs=[body.inputs] if isinstance(body.inputs, str) else body.inputs,
        model=body.model or None,
        add_special_tokens=body.add_special_tokens is not False,
        prompt_name=body.prompt_name,
    )

    def render(result: TokenizeResult) -> Rendered:
        data = [{"index": index, "tokens": tokens} for index, tokens in enumerate(result.tokens)]
        return json_answer(model=result.model, data=data, **usage_answer(result.usage))

    return Call(request, render)


class DecodeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    ids: list[list[Count]]
    model: str | None = None
    skip_special_tokens: bool | None = True


class DecodedIds(msgspec.Struct):
    index: int
    text: str


class DecodeAnswer(msgspec.Struct):
    model: str
    data: list[DecodedIds]


@ROUTES.post(
    "/vectord/decode",
    computes=None,
    answer=DecodeAnswer,
    summary="Decode token ids",
    example={"ids": [[101, 7592, 102]]},
)
def parse_decode(body: DecodeBody, incoming: Incoming) -> Call:
    def render(result: DecodeResult) -> Rendered:
        data = [{"index": index, "text": text} for index, text in enumerate(result.texts)]
        return json_answer(model=result.model, data=data)

    skip = body.skip_special_tokens is not False
    return Call(DecodeRequest(ids=body.ids, model=body.model or None, skip_special_tokens=skip), render)
