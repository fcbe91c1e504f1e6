// cohere-ai, both versions, with the address as it is and with /v1 behind it, which some users write.

import assert from "node:assert/strict";
import { test } from "node:test";
import { CohereClient, CohereClientV2, CohereError } from "cohere-ai";
import { assertSameVectors, embed, MODEL, QUERY, rank, TEXTS, TOO_LONG, tokens, url } from "./own.mjs";

for (const environment of [url, `${url}/v1`]) {
  const where = environment === url ? "at the root" : "behind /v1";
  const v1 = new CohereClient({ token: "any key", environment });
  const v2 = new CohereClientV2({ token: "any key", environment });

  test(`version 1 embeds ${where}`, async () => {
    const answer = await v1.embed({ model: MODEL, texts: TEXTS, inputType: "search_document" });
    assert.equal(answer.responseType, "embeddings_floats");
    assert.equal(typeof answer.id, "string");
    assert.deepEqual(answer.texts, TEXTS);
    assertSameVectors(answer.embeddings, await embed(TEXTS));
  });

  test(`version 1 embeds by type ${where}`, async () => {
    const embeddingTypes = ["float", "int8", "ubinary"];
    const answer = await v1.embed({ model: MODEL, texts: TEXTS, inputType: "search_document", embeddingTypes });
    assert.equal(answer.responseType, "embeddings_by_type");
    assertSameVectors(answer.embeddings.float, await embed(TEXTS));
    assert.equal(answer.embeddings.int8[0].length, 384);
    assert.equal(answer.embeddings.ubinary[0].length, 48);
  });

  test(`version 2 embeds ${where}`, async () => {
    const answer = await v2.embed({ model: MODEL, texts: TEXTS, inputType: "search_query", embeddingTypes: ["float"] });
    assertSameVectors(answer.embeddings.float, await embed(TEXTS));
    assert.equal(answer.meta.billedUnits.inputTokens, await tokens(TEXTS));
  });

  test(`both rerank ${where}`, async () => {
    const expected = await rank(QUERY, TEXTS);
    const first = await v1.rerank({ query: QUERY, documents: TEXTS, returnDocuments: true, topN: 2 });
    assert.deepEqual(first.results.map((one) => one.index), expected.slice(0, 2).map(([index]) => index));
    assert.equal(first.results[0].document.text, TEXTS[expected[0][0]]);
    const second = await v2.rerank({ model: "tiny-reranker", query: QUERY, documents: TEXTS });
    assert.deepEqual(second.results.map((one) => one.index), expected.map(([index]) => index));
    second.results.forEach((one, i) => assert.ok(Math.abs(one.relevanceScore - expected[i][1]) < 1e-3));
    assert.equal(second.results[0].document, undefined);
  });

  test(`refusals are the SDK's own class ${where}`, async () => {
    const long = { model: MODEL, texts: [TOO_LONG], inputType: "search_query", embeddingTypes: ["float"] };
    assertSameVectors((await v2.embed(long)).embeddings.float, await embed([TOO_LONG], { truncate: true }));
    await assert.rejects(v2.embed({ ...long, truncate: "NONE" }), (error) => {
      assert.ok(error instanceof CohereError);
      assert.equal(error.statusCode, 400);
      assert.match(error.body.message, /256 tokens/);
      return true;
    });
    await assert.rejects(v2.rerank({ model: "none", query: QUERY, documents: TEXTS }), { statusCode: 404 });
  });
}

test("version 1 tokenises", async () => {
  const answer = await new CohereClient({ token: "any key", environment: url }).tokenize({ model: MODEL, text: TEXTS[0] });
  assert.deepEqual(answer.tokenStrings, ["That", "is", "a", "happy", "person"]);
});
