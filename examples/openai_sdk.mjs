// OpenAI's SDK in JavaScript: the passages nearest to a question, by the cosine of their vectors.
//
//     npm install openai
//     vectord serve
//     node openai_sdk.mjs "when did it rain?"
//
// VECTORD_URL and VECTORD_API_KEY name another server, and its key.

import OpenAI from "openai";

const URL = process.env.VECTORD_URL ?? "http://127.0.0.1:8000";
const KEY = process.env.VECTORD_API_KEY ?? "none is needed";
const MODEL = "sentence-transformers/all-MiniLM-L6-v2";
const PASSAGES = [
  "The library opens at nine in the morning.",
  "A ticket for the night bus costs three euros.",
  "The bakery on the corner sells rye bread.",
  "Dogs must be on a lead in the park.",
  "The swimming pool is closed for repairs until May.",
  "Bicycles are lent at the station, for a day at most.",
  "The museum shows paintings of the seventeenth century.",
  "Rain is expected in the north on Sunday.",
];
const QUESTION = "How much is public transport after midnight?";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const question = process.argv[2] ?? QUESTION;
const answer = await client.embeddings.create({ model: MODEL, input: [question, ...PASSAGES] });
const [query, ...vectors] = answer.data.map((item) => item.embedding);

const dot = (a, b) => a.reduce((sum, number, place) => sum + number * b[place], 0);
const found = vectors
  .map((vector, index) => ({ score: dot(vector, query), passage: PASSAGES[index] })) // of unit length: the cosine
  .sort((a, b) => b.score - a.score)
  .slice(0, 3);
for (const { score, passage } of found) console.log(`${score.toFixed(3)}  ${passage}`);
