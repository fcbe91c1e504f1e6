// Sparse vectors: the weight of each token of the text, and the words that the model adds.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { decimal, plural } from "./format.js";
import { shaded, wordsOf } from "./words.js";

const ADDED = 30; // words outside the text, by weight
const text = el("textarea", { rows: "3", maxlength: "100000" }, "The bridge was closed after two days of rain.");
const body = ({ reading }) => ({ ...reading, inputs: [text.value], outputs: ["sparse"] });

export const sparse = {
  id: "sparse",
  title: "Sparse",
  about: "The weight of each token. A repeated token has one weight, its largest.",
  fields: el("label", {}, "Text", text),
  cannot: (model) => (model.outputs.includes("sparse") ? null : `${model.name} makes no sparse vectors.`),
  call: (asked) => ({
    method: "POST", path: "/vectord/embed", body: body(asked), operation: "embed", outputs: ["sparse"], texts: [text.value],
  }),
  async run(asked) {
    const answer = await post("vectord/embed", body(asked));
    const maker = answer.json.sources.sparse; // for a composite, the model whose tokens these are
    const tokenized = await post("vectord/tokenize", { model: maker, inputs: [text.value] });
    const { indices, values } = answer.json.data[0].sparse;
    const weights = new Map(indices.map((id, at) => [id, values[at]]));
    const tokens = tokenized.json.data[0].tokens;
    const words = wordsOf(text.value, tokens, asked.model, painter(weights, Math.max(...values)));
    return { nodes: [words, ...(await added(maker, weights, tokens))], answers: [answer] };
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

async function added(maker, weights, tokens) {
  const written = new Set(tokens.map((token) => token.id));
  const others = [...weights].filter(([id]) => !written.has(id)).sort((one, other) => other[1] - one[1]);
  const told = el("p", { class: "note" }, `${plural(weights.size, "token")} with a weight, ${others.length} of them not in the text.`);
  if (others.length === 0) return [told];
  const heaviest = others.slice(0, ADDED);
  const { json } = await post("vectord/decode", { model: maker, ids: heaviest.map(([id]) => [id]) });
  const rows = heaviest.map(([id, weight], at) => [json.data[at].text || `token ${id}`, decimal(weight, 3)]);
  return [told, scrolling("Words that the model adds", table([["added by the model", ""], ["weight", "right number"]], rows))];
}
