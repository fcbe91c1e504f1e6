// Images and pages of PDFs by their similarity to a text. A model with a vector for each patch shows which patches match.

import { post, totalOf } from "./api.js";
import { contentOf } from "./code.js";
import { bestMatches, bestOf, readsImages, similarities, tokenButtons, tokensOf } from "./colbert.js";
import { el, svg } from "./dom.js";
import { dropZone } from "./files.js";
import { decimal, percent, plural } from "./format.js";

const MAX_FILES = 200;
const PARALLEL = 4; // requests at once, each of one file, so that an error is its own
const OF_THE_FILE = [400, 413, 422, undefined]; // statuses of errors that concern one file; undefined: it is not readable
const DARKEST = 0.75; // opacity of the best patch

const query = el("input", { value: "a dog on a beach", maxlength: "20000", required: true });
const thumbnails = el("ul", { class: "shots small", "aria-label": "Chosen files" });
const remove = el("button", { type: "button", hidden: true, onclick: () => choose([]) }, "Remove the files");
const drop = dropZone("Drop images or PDFs here, or choose them", { accept: "image/*,application/pdf", multiple: true },
  (added) => choose([...chosen, ...added.map(entryOf)].slice(0, MAX_FILES)), thumbnails, remove);
let chosen = []; // {file, url, pages: by fingerprint, a list of {rows, patches, page, picture}; of an image one}

const entryOf = (file) => ({ file, url: URL.createObjectURL(file), pages: new Map() });
const isPdf = ({ file }) => file.type === "application/pdf";

function choose(entries) {
  chosen = entries;
  thumbnails.replaceChildren(...chosen.map((entry) => el("li", {}, pictureOf(entry, entry.file.name))));
  remove.hidden = chosen.length === 0;
  drop.dispatchEvent(new Event("input", { bubbles: true })); // the code next to the form
}

/** The image, or the server's picture of a page. A browser draws no PDF in other pages: it is an empty sheet. */
function pictureOf(entry, alt, picture) {
  const src = isPdf(entry) ? picture : entry.url;
  if (src) return el("img", { src, alt, title: alt });
  return el("span", { class: "sheet", role: "img", "aria-label": alt || "PDF", title: alt }, "PDF");
}

const hasPatches = (model) => !model.outputs.includes("dense");

function body({ model, reading }, input, kind) {
  const asked = { ...reading, inputs: [input], kind };
  if (!hasPatches(model)) return asked;
  return { ...asked, outputs: ["colbert"], ...(kind === "document" && { patches: true }) };
}

export const images = {
  id: "images",
  title: "Images",
  about: `Images and pages of up to ${MAX_FILES} files, ordered by their similarity to a text. A model with a vector for each patch also shows which patches match.`,
  fields: [el("label", {}, "Query", query), drop],
  cannot: (model) => (readsImages(model) && ["dense", "colbert"].some((kind) => model.outputs.includes(kind)) ? null
    : `${model.name} makes no vectors of images.`),
  calls: (asked) => [[inputOf(chosen[0], contentOf(chosen[0]?.file.name ?? "picture.jpg")), "document"], [query.value, "query"]]
    .map(([input, kind]) => ({ path: "/vectord/embed", body: body(asked, input, kind) })),
  note: () => (chosen.length > 1 ? "The first file; the others are sent in the same way." : ""),
  async run(asked, report, first) {
    if (chosen.length === 0) throw new Error("Choose at least one file.");
    const { model } = asked;
    const listed = first?.listed ?? chosen;
    const began = performance.now();
    const asking = await post("vectord/embed", body(asked, query.value, "query"));
    const { answers, failures } = await embedded(listed, asked, report);
    const [{ rows }] = vectorsOf(asking);
    const pages = scoredPages(listed, model.fingerprint, rows);
    if (pages.length === 0) throw new Error(failures.values().next().value);
    const best = [...pages].sort((one, other) => other.score - one.score);
    const order = best.map(({ id }) => id);
    const matches = hasPatches(model) ? matchesOf(await tokensOf(asking, query.value, model, "query"), rows) : null;
    matches?.show(best[0]);
    const ranked = best.map((page, rank) => itemOf(page, page.name, matches && (() => matches.show(page)), [
      `${rank + 1}. `, el("b", { class: "number" }, decimal(page.score)),
      first && ` (before: ${first.order.indexOf(page.id) + 1 || "\u2013"})`]));
    const failed = [...failures].map(([entry, message]) => itemOf({ entry }, entry.file.name, null, el("span", { class: "bad" }, message)));
    return {
      nodes: [
        el("p", { class: "note" }, "Score: ", el("b", {}, matches ? "sum of the best match of each token" : "cosine"),
          first && ". Before: the rank by the first model."),
        ...(matches ? [matches.node] : []),
        el("ol", { class: "shots", "aria-label": "Images by score" }, ranked, failed),
      ],
      answers: [totalOf([asking, ...answers], began)], order, listed,
      scores: () => (pages.length > 2 && failures.size === 0 ? [pages.map(({ score }) => score)] : null),
    };
  },
};

/** Embeds the files that this model has not embedded yet. Returns the answers, and the error of each file that has one. */
async function embedded(listed, asked, report) {
  const { fingerprint } = asked.model;
  const waiting = listed.filter(({ pages }) => !pages.has(fingerprint));
  const all = waiting.length;
  const answers = [];
  const failures = new Map();
  const work = async () => {
    for (let entry = waiting.shift(); entry; entry = waiting.shift()) {
      try {
        const asking = body(asked, inputOf(entry, await contentAsUri(entry.file)), "document");
        const answer = await post("vectord/embed", isPdf(entry) ? { ...asking, pictures: true } : asking);
        entry.pages.set(fingerprint, vectorsOf(answer));
        answers.push(answer);
      } catch (error) {
        if (!OF_THE_FILE.includes(error.status)) {
          waiting.length = 0;
          throw error;
        }
        failures.set(entry, error.message);
      }
      report(`${plural(answers.length + failures.size, "file")} of ${all}`);
    }
  };
  const ended = await Promise.allSettled(Array.from({ length: PARALLEL }, work));
  const broken = ended.find(({ status }) => status === "rejected");
  if (broken) throw broken.reason;
  return { answers, failures };
}

/** {entry, id, name, score, rows, patches} of each image or page that the model has embedded. rows: of the query. */
function scoredPages(listed, fingerprint, rows) {
  return listed.flatMap((entry, at) => (entry.pages.get(fingerprint) ?? []).map((made) => ({
    ...made, entry, id: `${at} ${made.page}`,
    name: made.page === undefined ? entry.file.name : `${entry.file.name}, page ${made.page}`,
    score: sumOf(bestMatches(similarities(rows, made.rows))),
  })));
}

function contentAsUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/** {rows, patches, page, picture} of each image or page of an answer. A dense vector is one row; patches: the box of each row, or null. */
function vectorsOf({ json: { data } }) {
  return data.map(({ dense, colbert, patches, page, picture }) => ({
    rows: (colbert ?? [dense]).map((row) => Float32Array.from(row)), patches, page, picture: picture && urlOfJpeg(picture),
  }));
}

function urlOfJpeg(base64) {
  return URL.createObjectURL(new Blob([Uint8Array.from(atob(base64), (sign) => sign.codePointAt(0))], { type: "image/jpeg" }));
}

const inputOf = (entry, content) => (entry && isPdf(entry) ? { pdf: content } : { image: content });
const sumOf = (values) => values.reduce((sum, value) => sum + value);

function itemOf({ entry, picture }, name, show, words) {
  const parts = [pictureOf(entry, "", picture), el("span", {}, words), el("span", { class: "note" }, name)];
  return el("li", {}, show ? el("button", { type: "button", onclick: show }, parts) : parts);
}

/** An image with its patches, the darker the more similar to the selected token of the query. Returns {node, show}. */
function matchesOf(names, rows) {
  const title = el("h3");
  const place = el("div", { class: "page" });
  const readout = el("output", { class: "number" });
  const words = ["all tokens", ...names];
  let selected = 0;
  let paint = () => {};
  const buttons = tokenButtons(words, (at) => {
    selected = at;
    paint();
  });
  const show = ({ entry, name, patches, picture, rows: shown }) => {
    const boxes = patches.filter(Boolean); // without the rows of a text
    const ofTokens = similarities(rows, shown.filter((_, at) => patches[at]));
    const means = boxes.map((_, at) => sumOf(ofTokens.map((row) => row[at])) / ofTokens.length);
    const squares = boxes.map(([x, y, right, bottom]) => svg("rect", { x, y, width: right - x, height: bottom - y }));
    paint = () => {
      const scores = [means, ...ofTokens][selected];
      const best = bestOf(scores);
      const least = scores.reduce((one, other) => Math.min(one, other));
      squares.forEach((square, at) => {
        const share = (scores[at] - least) / (scores[best] - least || 1);
        square.setAttribute("fill-opacity", (DARKEST * share ** 2).toFixed(3));
        square.classList.toggle("best", at === best);
      });
      const [left, top] = boxes[best];
      readout.textContent = `${words[selected]} \u2192 ${percent(left)} from the left, ${percent(top)} from the top: ${decimal(scores[best])}`;
    };
    title.textContent = name;
    place.replaceChildren(pictureOf(entry, name, picture),
      svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" }, squares));
    buttons.select(selected);
    place.scrollIntoView({ block: "nearest" });
  };
  return { node: el("div", { class: "result" }, title, buttons.node, place, readout), show };
}
