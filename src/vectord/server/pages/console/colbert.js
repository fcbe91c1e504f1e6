// ColBERT: the best document token for each query token.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { decimal } from "./format.js";
import { dot } from "./projection.js";
import { shaded } from "./words.js";

const BLANK = "\u2423"; // shown for a token that is a blank
const SUFFIX = "\u2026"; // shown for a token that the model adds after the text
const MAX_CELLS = 12000; // of the table; larger results show the words only

const query = el("input", { value: "Why was the bridge closed?", maxlength: "2000" });
const passage = el("textarea", { rows: "3", maxlength: "20000" }, "The river rose after two days of rain. The crossing was shut by noon.");
const body = ({ reading }, text, kind) => ({ ...reading, inputs: [text], outputs: ["colbert"], kind });

export const colbert = {
  id: "colbert",
  title: "ColBERT",
  about: "One vector per token. Select a token of the query to see its best match in the document.",
  fields: [el("label", {}, "Query", query), el("label", {}, "Document", passage)],
  cannot: (model) => (model.outputs.includes("colbert") ? null : `${model.name} makes no vectors per token (ColBERT).`),
  calls: (asked) => [[query, "query"], [passage, "document"]].map(([field, kind]) => (
    { path: "/vectord/embed", body: body(asked, field.value, kind) })),
  async run(asked) {
    const { model } = asked;
    const [asking, answering] = await Promise.all([
      post("vectord/embed", body(asked, query.value, "query")),
      post("vectord/embed", body(asked, passage.value, "document")),
    ]);
    const rows = await tokensOf(asking, query.value, model, "query");
    const columns = await tokensOf(answering, passage.value, model, "document");
    const [left, right] = [asking, answering].map(rowsOf);
    return {
      nodes: matching(rows, columns, similarities(left, right)),
      answers: [{ ...asking, name: "query" }, { ...answering, name: "document" }],
    };
  },
};

/** The vectors of the first input of an answer: a row for each token. */
export const rowsOf = ({ json }) => json.data[0].colbert;

/** The products of each row of one side with each row of the other. */
export const similarities = (left, right) => left.map((one) => right.map((other) => dot(one, other)));

/** The largest similarity of each token. */
export const bestMatches = (scores) => scores.map((row) => row.reduce((best, value) => Math.max(best, value)));

/** The token of each vector of an answer for `text`. kind: query or document. */
export async function tokensOf(answer, text, model, kind) {
  const maker = answer.json.sources.colbert; // for a composite, the model whose tokens these are
  const isPrompted = kind === "query" && readsImages(model) && model.prompts.query !== undefined;
  const options = isPrompted ? { prompt_name: "query", add_special_tokens: false } : {}; // such a prompt has all of them
  const { json } = await post("vectord/tokenize", { model: maker, inputs: [text], ...options });
  return namesOf(json.data[0].tokens, rowsOf(answer).length, model, kind);
}

export const readsImages = (model) => model.modalities.includes("image");

/** The token of each vector: repeats the rules of text/colbert.py, and is used only if the count matches. */
function namesOf(tokens, vectors, model, kind) {
  const names = tokens.map((token) => (token.text.trim() === "" ? BLANK : token.text));
  if (model.outputs.includes("dense") && names.length - 1 === vectors) return names.slice(1);
  if (kind === "query" && readsImages(model)) { // further tokens follow the text
    const end = tokens.at(-1)?.special ? names.length - 1 : names.length;
    return names.toSpliced(end, 0, ...Array(Math.max(0, vectors - names.length)).fill(SUFFIX));
  }
  const marked = [names[0], kind === "query" ? "[Q]" : "[D]", ...names.slice(1)];
  for (const form of [marked, names]) {
    if (kind === "query" && form.length <= vectors) return [...form, ...Array(vectors - form.length).fill("[MASK]")];
    const counting = form.filter((name) => !/^[!-/:-@[-`{-~]$/.test(name));
    const fit = [form, counting].find((each) => each.length === vectors);
    if (fit) return fit;
  }
  return Array.from({ length: vectors }, (_, at) => `vector ${at + 1}`);
}

/** A button for each token. choose: called with the index of the token that is selected. Returns {node, select(at)}. */
export function tokenButtons(names, choose) {
  const buttons = names.map((name, at) => {
    const show = () => select(at);
    return el("button", { type: "button", class: "word", "aria-pressed": "false", onfocus: show, onclick: show, onpointerenter: show }, name);
  });
  const select = (at) => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
    choose(at);
  };
  return { node: el("p", { class: "words", role: "group", "aria-label": "Tokens of the query" }, spaced(buttons)), select };
}

const spaced = (nodes) => nodes.flatMap((node) => [node, " "]);

export const bestOf = (row) => row.reduce((best, value, at) => (value > row[best] ? at : best), 0);

function matching(rows, columns, scores) {
  const most = bestMatches(scores);
  const sum = most.reduce((all, value) => all + value, 0);
  const readout = el("output", { class: "number" });
  const words = columns.map((name) => el("span", { class: "word" }, name));
  const query = tokenButtons(rows, (at) => {
    const best = bestOf(scores[at]);
    words.forEach((word, other) => {
      shaded(word, scores[at][other] / (most[at] || 1));
      word.classList.toggle("best", other === best);
    });
    readout.textContent = `${rows[at]} \u2192 ${columns[best]}: ${decimal(most[at])}`;
  });
  query.select(0);
  return [
    el("p", { class: "note facts" }, el("span", {}, "Sum of the best matches: ", el("b", { class: "number" }, decimal(sum))),
      el("span", {}, "mean: ", el("b", { class: "number" }, decimal(sum / rows.length)))),
    el("div", {}, el("h3", {}, "Query"), query.node),
    el("div", {}, el("h3", {}, "Document"), el("p", { class: "words" }, spaced(words))),
    readout,
    ...(rows.length * columns.length <= MAX_CELLS ? [grid(rows, columns, scores, most)] : []),
  ];
}

function grid(rows, columns, scores, most) {
  const cells = rows.map((name, at) => [name, ...scores[at].map((score, other) => {
    const node = shaded(el("span", { class: "number" }, decimal(score, 2)), 0);
    return { node, score, best: other === bestOf(scores[at]), most: most[at] };
  })]);
  const made = table([["query", ""], ...columns.map((name) => [name, "number"])], cells.map(([name, ...row]) => [name, ...row.map(({ node }) => node)]), { class: "matrix" });
  made.querySelectorAll("tbody tr").forEach((line, at) => [...line.cells].slice(1).forEach((cell, other) => {
    const { score, best, most: top } = cells[at][other + 1];
    shaded(cell, Math.max(0, score) / Math.max(top, 1e-9));
    cell.classList.toggle("best", best);
  }));
  return el("details", {}, el("summary", {}, "All pairs of tokens"), scrolling("All pairs of tokens", made));
}
