// @mistralai/mistralai, which validates every field of an answer: a null among the numbers of `usage` is an error.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Mistral } from "@mistralai/mistralai";
import { assertSameVectors, embed, MODEL, TEXTS, tokens, url } from "./own.mjs";

const client = new Mistral({ apiKey: "any key", serverURL: url });

test("texts have vectors and usage", async () => {
  const answer = await client.embeddings.create({ model: MODEL, inputs: TEXTS });
  assertSameVectors(answer.data.map((item) => item.embedding), await embed(TEXTS));
  assert.equal(answer.usage.totalTokens, await tokens(TEXTS));
});
