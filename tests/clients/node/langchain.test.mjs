// @langchain/openai, as n8n and Flowise have it: no line breaks, 512 texts a request, and the SDK beneath.

import assert from "node:assert/strict";
import { test } from "node:test";
import { OpenAIEmbeddings } from "@langchain/openai";
import { assertSameVectors, embed, MODEL, QUERY, TEXTS, TOO_LONG, url } from "./own.mjs";

const make = (fields = {}) =>
  new OpenAIEmbeddings({ model: MODEL, apiKey: "any key", configuration: { baseURL: `${url}/v1` }, ...fields });

test("documents and a query", async () => {
  assertSameVectors(await make().embedDocuments(TEXTS), await embed(TEXTS));
  assertSameVectors([await make().embedQuery(QUERY)], await embed([QUERY]));
});

test("line breaks become blanks if it is asked to", async () => {
  const sent = TEXTS.map((text) => text.replaceAll("\n", " "));
  assertSameVectors(await make({ stripNewLines: true }).embedDocuments(TEXTS), await embed(sent));
});

test("more texts than one request has come together in order", async () => {
  const many = Array.from({ length: 12 }, (_, i) => `${TEXTS[i % 4]} ${i}`);
  assertSameVectors(await make({ batchSize: 5 }).embedDocuments(many), await embed(many));
});

test("a refusal keeps its status and is not tried again", async () => {
  await assert.rejects(make().embedQuery(TOO_LONG), (error) => error.status === 400);
  await assert.rejects(make({ model: "none" }).embedQuery("a"), (error) => error.status === 404);
});
