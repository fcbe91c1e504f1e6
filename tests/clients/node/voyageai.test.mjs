// voyageai, Voyage's own package for JavaScript. A rerank without topK is recognised by `truncation`.

import assert from "node:assert/strict";
import { test } from "node:test";
import { VoyageAIClient, VoyageAIError } from "voyageai";
import { assertSameVectors, embed, MODEL, QUERY, rank, TEXTS, tokens, url } from "./own.mjs";

const client = new VoyageAIClient({ apiKey: "any key", environment: `${url}/v1`, maxRetries: 0 });

for (const inputType of [undefined, "document", "query"]) {
  test(`texts have vectors and usage with the input type ${inputType}`, async () => {
    const answer = await client.embed({ model: MODEL, input: TEXTS, inputType, truncation: true });
    assertSameVectors(answer.data.map((item) => item.embedding), await embed(TEXTS));
    assert.equal(answer.usage.totalTokens, await tokens(TEXTS));
  });
}

for (const topK of [undefined, 2]) {
  test(`documents are ranked with topK ${topK}`, async () => {
    const body = { model: "tiny-reranker", query: QUERY, documents: TEXTS, topK, truncation: true, returnDocuments: true };
    const answer = await client.rerank(body);
    const expected = (await rank(QUERY, TEXTS)).slice(0, topK);
    assert.deepEqual(answer.data.map((item) => item.index), expected.map(([index]) => index));
    answer.data.forEach((item, i) => assert.ok(Math.abs(item.relevanceScore - expected[i][1]) < 1e-3));
    assert.equal(answer.data[0].document, TEXTS[expected[0][0]]);
  });
}

test("a refusal is the SDK's own class", async () => {
  await assert.rejects(client.embed({ model: "none", input: TEXTS, inputType: "query" }), (error) => {
    assert.ok(error instanceof VoyageAIError);
    assert.match(JSON.stringify(error.body), /No such model/);
    return true;
  });
});
