// Sparse vectors: the weight of each token of the text, and the words that the model adds.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { decimal, plural } from "./format.js";
import { bar } from "./rerank.js";
import { shaded, wordsOf } from "./words.js";

const SHOWN = 40; // words, the heaviest first
const text = el("textarea", { rows: "3", maxlength: "100000" }, "The bridge was closed after two days of rain.");
const body = ({ reading }) => ({ ...reading, inputs: [text.value], outputs: ["sparse"] });

export const sparse = {
  id: "sparse",
  title: "Sparse",
  about: "The words of the vector with their weights. A repeated token counts once, with its largest weight.",
  fields: el("label", {}, "Text", text),
  cannot: (model) => (model.outputs.includes("sparse") ? null : `${model.name} makes no sparse vectors.`),
  calls: (asked) => [{ path: "/vectord/embed", body: body(asked) }],
  async run(asked) {
    const answer = await post("vectord/embed", body(asked));
    const maker = answer.json.sources.sparse; // for a composite, the model whose tokens these are
    const tokenized = await post("vectord/tokenize", { model: maker, inputs: [text.value] });
    const { indices, values } = answer.json.data[0].sparse;
    const weights = new Map(indices.map((id, at) => [id, values[at]]));
    const tokens = tokenized.json.data[0].tokens;
    const words = wordsOf(text.value, tokens, asked.model, painter(weights, Math.max(...values)));
    return { nodes: [words, ...(await bars(maker, weights, tokens))], answers: [answer] };
  },
};

function painter(weights, largest) {
  return (token, surface) => {
    const weight = weights.get(token.id);
    if (weight === undefined) return el("span", { class: token.special ? "special" : "word" }, surface);
    const node = el("span", { class: "word", title: `token ${token.id}` }, surface, el("sub", {}, decimal(weight, 2)));
    return shaded(node, weight / largest);
  };
}

/** A bar per word, the heaviest first. Words that the model adds are marked. */
async function bars(maker, weights, tokens) {
  const written = new Set(tokens.map((token) => token.id));
  const added = [...weights.keys()].filter((id) => !written.has(id)).length;
  const summary = el("p", { class: "note" }, `${plural(weights.size, "token")} with a weight, ${added} of them not in the text.`);
  if (weights.size === 0) return [summary];
  const heaviest = [...weights].sort((one, other) => other[1] - one[1]).slice(0, SHOWN);
  const { json } = await post("vectord/decode", { model: maker, ids: heaviest.map(([id]) => [id]), skip_special_tokens: false });
  const rows = heaviest.map(([id, weight], at) => [
    json.data[at].text || `token ${id}`,
    written.has(id) ? "text" : "added",
    bar(weight / heaviest[0][1]),
    decimal(weight, 3),
  ]);
  const columns = [["word", "word-of"], ["origin", "note"], ["relative to the largest", "track"], ["weight", "right number"]];
  return [summary, scrolling("Words by weight", table(columns, rows, { class: "bars" }))];
}
