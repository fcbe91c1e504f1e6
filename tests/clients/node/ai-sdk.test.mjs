// @ai-sdk/voyage, Voyage's provider for the AI SDK. Without topN and truncation, its rerank body equals those of other
// APIs; the address of Voyage's API alone, /dialects/voyage, serves it in any case.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createVoyage } from "@ai-sdk/voyage";
import { embed as embedOne, embedMany, rerank } from "ai";
import { assertSameVectors, embed, MODEL, QUERY, rank, TEXTS, tokens, url } from "./own.mjs";

const voyage = createVoyage({ baseURL: `${url}/v1`, apiKey: "any key" });
const alone = createVoyage({ baseURL: `${url}/dialects/voyage/v1`, apiKey: "any key" });
const options = (inputType) => ({ providerOptions: { voyage: { inputType, truncation: true } } });

test("texts have vectors and usage", async () => {
  const model = voyage.embeddingModel(MODEL);
  const answer = await embedMany({ model, values: TEXTS, ...options("document") });
  assertSameVectors(answer.embeddings, await embed(TEXTS));
  assert.equal(answer.usage.tokens, await tokens(TEXTS));
  const one = await embedOne({ model, value: TEXTS[0], ...options("query") });
  assertSameVectors([one.embedding], await embed([TEXTS[0]]));
});

const ways = [
  ["with truncation", voyage, { providerOptions: { voyage: { truncation: true } } }],
  ["with topN", voyage, { topN: 2 }],
  ["at its own address", alone, {}],
];
for (const [how, provider, settings] of ways) {
  test(`documents are ranked ${how}`, async () => {
    const model = provider.reranking("tiny-reranker");
    const answer = await rerank({ model, query: QUERY, documents: TEXTS, ...settings });
    const expected = (await rank(QUERY, TEXTS)).slice(0, settings.topN);
    assert.deepEqual(answer.ranking.map((one) => one.originalIndex), expected.map(([index]) => index));
    answer.ranking.forEach((one, i) => assert.ok(Math.abs(one.score - expected[i][1]) < 1e-3));
    assert.equal(answer.rerankedDocuments[0], TEXTS[expected[0][0]]);
  });
}

test("objects are ranked as their JSON", async () => {
  const documents = TEXTS.map((text) => ({ text }));
  const answer = await rerank({ model: alone.reranking("tiny-reranker"), query: QUERY, documents });
  assert.equal(answer.ranking.length, TEXTS.length);
});

test("a refusal has a status and a message", async () => {
  const asked = embedMany({ model: voyage.embeddingModel("none"), values: TEXTS, maxRetries: 0 });
  await assert.rejects(asked, (error) => {
    assert.match(`${error.message} ${error.responseBody}`, /No such model/);
    return true;
  });
});
