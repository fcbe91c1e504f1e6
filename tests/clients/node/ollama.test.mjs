// ollama: embeddings both old and new, and what a client asks before it uses a model.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";
import { assertSameVectors, embed, MODEL, TEXTS, TOO_LONG, tokens, url } from "./own.mjs";

const client = new Ollama({ host: url });

test("embeds texts, and counts them", async () => {
  const answer = await client.embed({ model: MODEL, input: TEXTS });
  assertSameVectors(answer.embeddings, await embed(TEXTS));
  assert.equal(answer.prompt_eval_count, await tokens(TEXTS));
});

test("embeds one prompt, as older clients do", async () => {
  const { embedding } = await client.embeddings({ model: MODEL, prompt: TEXTS[0] });
  assertSameVectors([embedding], await embed(TEXTS.slice(0, 1)));
});

test("cuts a long text unless it is told not to", async () => {
  const { embeddings } = await client.embed({ model: MODEL, input: TOO_LONG });
  assertSameVectors(embeddings, await embed([TOO_LONG], { truncate: true }));
  const strict = client.embed({ model: MODEL, input: TOO_LONG, truncate: false });
  await assert.rejects(strict, { name: "ResponseError", status_code: 400 });
});

test("lists and shows what it serves", async () => {
  const { models } = await client.list();
  const [first] = models.map((model) => model.name);
  assertSameVectors((await client.embed({ model: first, input: TEXTS })).embeddings, await embed(TEXTS));
  const shown = await client.show({ model: MODEL });
  assert.deepEqual(shown.capabilities, ["embedding"]);
  assert.equal(shown.model_info["bert.context_length"], 256);
});

test("an unknown model is Ollama's error", async () => {
  await assert.rejects(client.embed({ model: "none", input: "a" }), { name: "ResponseError", status_code: 404 });
});
