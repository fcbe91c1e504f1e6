// JavaScript without a package: vectors as bytes, an eighth of what they take as JSON, then the best ones ranked again.
//
//     vectord serve
//     node fetch.mjs "when did it rain?"
//
// VECTORD_URL and VECTORD_API_KEY name another server, and its key. Browsers run it, too: --cors-allow-origin.

const URL = process.env.VECTORD_URL ?? "http://127.0.0.1:8000";
const KEY = process.env.VECTORD_API_KEY ?? "none is needed";
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

async function post(path, body, accept) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${KEY}`, accept };
  const answer = await fetch(URL + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer;
}

/** A Float32Array for each text, of unit length: little-endian numbers, row behind row. */
async function embed(texts) {
  const answer = await post("/vectord/embed", { inputs: texts }, "application/octet-stream;dtype=float32");
  const [rows, width] = answer.headers.get("x-vectord-shape").split(",").map(Number);
  const numbers = new Float32Array(await answer.arrayBuffer());
  return Array.from({ length: rows }, (_, row) => numbers.subarray(row * width, (row + 1) * width));
}

async function rerank(query, passages) {
  const answer = await post("/vectord/rerank", { query, passages }, "application/json");
  return (await answer.json()).results;
}

const dot = (a, b) => a.reduce((sum, number, place) => sum + number * b[place], 0);
const question = process.argv[2] ?? QUESTION;
const [query, ...vectors] = await embed([question, ...PASSAGES]);
const nearest = vectors
  .map((vector, index) => ({ score: dot(vector, query), passage: PASSAGES[index] }))
  .sort((a, b) => b.score - a.score)
  .slice(0, 6)
  .map((item) => item.passage);
const ranked = await rerank(question, nearest);
for (const { score, index } of ranked.slice(0, 3)) console.log(`${score.toFixed(3)}  ${nearest[index]}`);
