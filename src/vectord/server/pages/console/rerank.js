// Passages ordered by relevance to a query, with the kind of the scores.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { decimal } from "./format.js";

const METHODS = { scores: "reranker scores", weighted: "weighted", dense: "dense", colbert: "ColBERT", sparse: "sparse" };

const query = el("input", { value: "Why was the bridge closed?", maxlength: "20000" });
const passages = el("textarea", { rows: "5", maxlength: "200000" }, [
  "The river rose after two days of rain.",
  "Bread needs flour, water, salt and yeast.",
  "The crossing was shut because of the flood.",
].join("\n"));
const method = el("select", {}, el("option", { value: "" }, "model default"));
const lines = () => passages.value.split("\n").map((line) => line.trim()).filter(Boolean);

function body({ model, reading }) {
  const asked = { ...reading, query: query.value, passages: lines() };
  return method.value && methodsOf(model).includes(method.value) ? { ...asked, method: method.value } : asked;
}

function methodsOf(model) {
  const made = ["dense", "colbert", "sparse"].filter((kind) => model.outputs.includes(kind));
  return [...(model.reranks ? ["scores"] : []), ...(made.length === 3 ? ["weighted"] : []), ...made];
}

export const rerank = {
  id: "rerank",
  title: "Rerank",
  about: "The passages, best first. Scores of different kinds cannot be compared.",
  fields: [el("label", {}, "Query", query), el("label", {}, "Passages, one per line", passages), el("label", {}, "Method", method)],
  prefers: (model) => model.reranks,
  cannot: (model) => (methodsOf(model).length ? null : `${model.name} only gives labels.`),
  follow({ model }) {
    const known = model === undefined ? [] : methodsOf(model);
    const chosen = method.value;
    if (known.join() === [...method.options].slice(1).map((option) => option.value).join()) return;
    method.replaceChildren(method.options[0], ...known.map((name) => el("option", { value: name }, METHODS[name])));
    method.value = known.includes(chosen) ? chosen : "";
  },
  call: (asked) => ({
    method: "POST", path: "/vectord/rerank", body: body(asked), operation: "rerank", outputs: [], texts: lines(), query: query.value,
  }),
  async run(asked) {
    const sent = body(asked);
    const answer = await post("vectord/rerank", sent);
    const { results, score_kind: kind } = answer.json;
    const scores = results.map((result) => result.score);
    const least = Math.min(0, ...scores); // a negative score is no length
    const range = Math.max(...scores) - least || 1;
    const rows = results.map((result, place) => [
      place + 1, sent.passages[result.index], decimal(result.score), bar((result.score - least) / range),
    ]);
    return {
      nodes: [
        el("p", { class: "note" }, "Kind of score: ", el("b", {}, kind)),
        scrolling("Passages by score", table([["rank", "right number"], ["passage", "wrap"], ["score", "right number"], ["relative to the best", "track"]], rows, { class: "ranks" })),
      ],
      answers: [answer],
    };
  },
};

/** A bar whose length is a share of its cell. */
export function bar(share) {
  const node = el("span", { class: share < 0 ? "bar minus" : "bar", "aria-hidden": "true" });
  node.style.width = `${Math.round(Math.abs(share) * 100)}%`;
  return node;
}
