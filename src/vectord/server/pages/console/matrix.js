// Similarity of texts: the cosine of each pair.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { linesOf } from "./files.js";
import { decimal } from "./format.js";
import { dot } from "./projection.js";
import { shaded } from "./words.js";

const MAX_TEXTS = 40;
const texts = el("textarea", { rows: "6", maxlength: "200000" }, [
  "The bridge was closed after two days of rain.",
  "Flooding shut the river crossing.",
  "The bakery opens at six.",
  "Fresh bread every morning.",
].join("\n"));
const body = ({ reading }) => ({ ...reading, inputs: linesOf(texts.value).slice(0, MAX_TEXTS) });

export const matrix = {
  id: "matrix",
  title: "Similarity",
  about: `Cosines of dense vectors for each pair of texts; the first ${MAX_TEXTS} lines.`,
  fields: el("label", {}, "Texts, one per line", texts),
  cannot: (model) => (model.outputs.includes("dense") ? null : `${model.name} makes no dense vectors.`),
  calls: (asked) => [{ path: "/vectord/embed", body: body(asked) }],
  async run(asked) {
    const sent = body(asked);
    const answer = await post("vectord/embed", sent);
    const vectors = answer.json.data.map((each) => each.dense);
    const cosines = vectors.map((one) => vectors.map((other) => dot(one, other)));
    return {
      nodes: [grid(sent.inputs, cosines)], answers: [answer],
      scores: () => (vectors.length > 2 ? cosines.map((row, at) => row.toSpliced(at, 1)) : null),
    };
  },
};

function grid(names, cosines) {
  const columns = [["text", ""], ...names.map((_, at) => [at + 1, "number"])];
  const rows = names.map((name, at) => [el("span", { title: name }, `${at + 1}  ${name}`), ...cosines[at].map((value) => decimal(value, 3))]);
  const made = table(columns, rows, { class: "matrix" });
  made.querySelectorAll("tbody tr").forEach((line, at) => [...line.cells].slice(1).forEach((cell, other) => {
    shaded(cell, cosines[at][other]);
    cell.classList.add("number");
  }));
  return scrolling("Cosine of each pair of texts", made);
}
