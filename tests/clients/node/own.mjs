// What vectord's own API answers, for the numbers that every client must get of the same texts.

import assert from "node:assert/strict";

export const url = process.env.VECTORD_URL;
export const MODEL = "sentence-transformers/all-MiniLM-L6-v2";
export const TEXTS = ["That is a happy person", "That is a happy dog", "Today is a sunny day", "Ünïcödé, 漢字, 🎉\tand\nlines"];
export const QUERY = "Which animal is happy?";
export const TOO_LONG = "word ".repeat(400);

export async function embed(texts, options = {}) {
  const { data } = await post("/vectord/embed", { inputs: texts, ...options });
  return data.map((item) => item.dense);
}

/** [index, score] of each passage, best first. */
export async function rank(query, passages) {
  const { results } = await post("/vectord/rerank", { query, passages, scores: "probability" });
  return results.map((item) => [item.index, item.score]);
}

export async function tokens(texts) {
  const { data } = await post("/vectord/tokenize", { inputs: texts });
  return data.reduce((sum, item) => sum + item.tokens.length, 0);
}

/** As many and as wide, and each pair at a cosine above 0.9999. */
export function assertSameVectors(given, expected) {
  assert.deepEqual(given.map((vector) => vector.length), expected.map((vector) => vector.length));
  given.forEach((vector, row) => {
    const cosine = dot(vector, expected[row]) / Math.sqrt(dot(vector, vector) * dot(expected[row], expected[row]));
    assert.ok(cosine > 0.9999, `cosine of text ${row}: ${cosine}`);
  });
}

const dot = (a, b) => a.reduce((sum, number, i) => sum + number * b[i], 0);

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  assert.equal(answer.status, 200);
  return answer.json();
}
