// openai, as n8n, Flowise and Continue have it: it asks for base64, and takes numbers for bytes if it gets them.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { BadRequestError, NotFoundError } from "openai";
import { assertSameVectors, embed, MODEL, TEXTS, TOO_LONG, tokens, url } from "./own.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any key" });
const vectors = (answer) => answer.data.map((item) => item.embedding);

test("nothing chosen, base64 gives the model's 384 numbers", async () => {
  const answer = await client.embeddings.create({ model: MODEL, input: TEXTS });
  assert.equal(answer.data[0].embedding.length, 384);
  assertSameVectors(vectors(answer), await embed(TEXTS));
  assert.deepEqual(answer.data.map((item) => item.index), [0, 1, 2, 3]);
  assert.equal(answer.usage.prompt_tokens, await tokens(TEXTS));
});

test("floats are the same numbers", async () => {
  const body = { model: MODEL, input: TEXTS };
  const [base64, floats] = await Promise.all([
    client.embeddings.create(body),
    client.embeddings.create({ ...body, encoding_format: "float" }),
  ]);
  assert.deepEqual(vectors(floats).map((vector) => Array.from(Float32Array.from(vector))), vectors(base64).map((vector) => Array.from(vector)));
});

test("one text is a list of one", async () => {
  const answer = await client.embeddings.create({ model: MODEL, input: TEXTS[0] });
  assertSameVectors(vectors(answer), await embed(TEXTS.slice(0, 1)));
});

test("the model is listed, and found by a name with a slash", async () => {
  const listed = [];
  for await (const model of client.models.list()) listed.push(model.id);
  assert.equal(listed[0], MODEL);
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
});

test("refusals are the SDK's own classes", async () => {
  await assert.rejects(client.embeddings.create({ model: "none", input: "a" }), (error) => {
    assert.ok(error instanceof NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.embeddings.create({ model: MODEL, input: ["a", TOO_LONG] }), (error) => {
    assert.ok(error instanceof BadRequestError);
    assert.equal(error.code, "context_length_exceeded");
    assert.match(error.message, /`input\[1\]` must have at most 256 tokens/);
    return true;
  });
});
