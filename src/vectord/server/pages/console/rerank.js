// Passages ordered by relevance to a query, with the kind of the scores.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { linesOf } from "./files.js";
import { decimal } from "./format.js";

const METHODS = { scores: "reranker scores", weighted: "weighted", dense: "dense", colbert: "ColBERT", sparse: "sparse" };

const query = el("input", { value: "Why was the bridge closed?", maxlength: "20000" });
const passages = el("textarea", { rows: "5", maxlength: "200000" }, [
  "The river rose after two days of rain.",
  "Bread needs flour, water, salt and yeast.",
  "The crossing was shut because of the flood.",
].join("\n"));
const method = el("select", {}, el("option", { value: "" }, "model default"));

function body({ model, reading }) {
  const asked = { ...reading, query: query.value, passages: linesOf(passages.value) };
  const chosen = methodsOf(model).includes(method.value) ? method.value : "";
  if (chosen && chosen !== "scores") return { ...asked, method: chosen };
  return model.reranks ? { ...asked, scores: "probability" } : asked; // from 0 to 1, so that models compare
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
  calls: (asked) => [{ path: "/vectord/rerank", body: body(asked) }],
  async run(asked, _report, first) {
    const sent = body(asked);
    const answer = await post("vectord/rerank", sent);
    const { results, score_kind: kind } = answer.json;
    const scores = results.map((result) => result.score);
    const least = Math.min(0, ...scores); // a negative score is no length
    const range = Math.max(1, ...scores) - least; // most kinds end at 1, so that the bars of two models compare
    const order = results.map((result) => result.index);
    const rows = results.map(({ index, score }, place) => [
      place + 1, ...(first ? [first.order.indexOf(index) + 1] : []), sent.passages[index], decimal(score), bar((score - least) / range),
    ]);
    const number = "right number";
    const columns = [["rank", number], ...(first ? [["before", number]] : []), ["passage", "wrap"], ["score", number], ["bar", "track"]];
    return {
      nodes: [
        el("p", { class: "note" }, "Kind of score: ", el("b", {}, kind), first && ". Before: the rank by the first model."),
        scrolling("Passages by score", table(columns, rows, { class: "ranks" })),
      ],
      answers: [answer], order,
      scores: () => (order.length > 1 ? [order.map((_, index) => scores[order.indexOf(index)])] : null),
    };
  },
};

/** A bar whose length is a share of its cell. */
export function bar(share) {
  const node = el("span", { class: share < 0 ? "bar minus" : "bar", "aria-hidden": "true" });
  node.style.width = `${Math.round(Math.abs(share) * 100)}%`;
  return node;
}
