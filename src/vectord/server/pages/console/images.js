// Images ordered by their similarity to a text. A model with a vector for each patch also shows which patches match.

import { post, totalOf } from "./api.js";
import { contentOf } from "./code.js";
import { bestMatches, bestOf, readsImages, similarities, tokenButtons, tokensOf } from "./colbert.js";
import { el, svg } from "./dom.js";
import { dropZone } from "./files.js";
import { decimal, percent, plural } from "./format.js";

const MAX_IMAGES = 200;
const PARALLEL = 4; // requests at once, each of one image, so that an error is its own
const OF_THE_IMAGE = [400, 413, 422, undefined]; // statuses of errors that concern one image; undefined: the file is not readable
const DARKEST = 0.75; // opacity of the best patch

const query = el("input", { value: "a dog on a beach", maxlength: "20000", required: true });
const thumbnails = el("ul", { class: "shots small", "aria-label": "Chosen images" });
const remove = el("button", { type: "button", hidden: true, onclick: () => choose([]) }, "Remove the images");
const drop = dropZone("Drop images here, or choose them", { accept: "image/*", multiple: true },
  (files) => choose([...chosen, ...files.map(imageOf)].slice(0, MAX_IMAGES)), thumbnails, remove);
let chosen = []; // {name, file, url, made: {rows, patches} by fingerprint}

const imageOf = (file) => ({ name: file.name, file, url: URL.createObjectURL(file), made: new Map() });

function choose(images) {
  chosen = images;
  thumbnails.replaceChildren(...chosen.map(({ name, url }) => el("li", {}, el("img", { src: url, alt: name, title: name }))));
  remove.hidden = chosen.length === 0;
  drop.dispatchEvent(new Event("input", { bubbles: true })); // the code next to the form
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
  about: `Up to ${MAX_IMAGES} images, ordered by their similarity to a text. A model with a vector for each patch also shows which patches match.`,
  fields: [el("label", {}, "Query", query), drop],
  cannot: (model) => (readsImages(model) ? null : `${model.name} reads no images.`),
  calls: (asked) => [[{ image: contentOf(chosen[0]?.name ?? "picture.jpg") }, "document"], [query.value, "query"]]
    .map(([input, kind]) => ({ path: "/vectord/embed", body: body(asked, input, kind) })),
  note: () => (chosen.length > 1 ? "The first image; the others are sent in the same way." : ""),
  async run(asked, report, first) {
    if (chosen.length === 0) throw new Error("Choose at least one image.");
    const { model } = asked;
    const listed = first?.listed ?? chosen;
    const began = performance.now();
    const asking = await post("vectord/embed", body(asked, query.value, "query"));
    const { answers, failures } = await embedded(listed, asked, report);
    const { rows } = vectorsOf(asking);
    const made = listed.map((image) => image.made.get(model.fingerprint));
    const scores = made.map((each) => each && bestMatches(similarities(rows, each.rows)).reduce((sum, best) => sum + best));
    const order = [...made.keys()].filter((at) => made[at]).sort((one, other) => scores[other] - scores[one]);
    if (order.length === 0) throw new Error(failures.values().next().value);
    const matches = hasPatches(model) ? matchesOf(await tokensOf(asking, query.value, model, "query"), rows) : null;
    const show = (at) => matches.show(listed[at], made[at]);
    matches?.show(listed[order[0]], made[order[0]]);
    const ranked = order.map((at, rank) => [listed[at], `${rank + 1}. `, el("b", { class: "number" }, decimal(scores[at])),
      first && ` (before: ${first.order.indexOf(at) + 1 || "\u2013"})`, matches && (() => show(at))]);
    const failed = [...failures].map(([image, message]) => [image, el("span", { class: "bad" }, message)]);
    return {
      nodes: [
        el("p", { class: "note" }, "Score: ", el("b", {}, matches ? "sum of the best match of each token" : "cosine"),
          first && ". Before: the rank by the first model."),
        matches?.node,
        el("ol", { class: "shots", "aria-label": "Images by score" }, [...ranked, ...failed].map(itemOf)),
      ].filter(Boolean),
      answers: [totalOf([asking, ...answers], began)], order, listed,
      scores: () => (order.length > 2 && failures.size === 0 ? [scores] : null),
    };
  },
};

/** Embeds the images that this model has not embedded yet. Returns the answers, and the error of each image that has one. */
async function embedded(listed, asked, report) {
  const { fingerprint } = asked.model;
  const waiting = listed.filter((image) => !image.made.has(fingerprint));
  const all = waiting.length;
  const answers = [];
  const failures = new Map();
  const work = async () => {
    for (let image = waiting.shift(); image; image = waiting.shift()) {
      try {
        const answer = await post("vectord/embed", body(asked, { image: await contentAsUri(image.file) }, "document"));
        image.made.set(fingerprint, vectorsOf(answer));
        answers.push(answer);
      } catch (error) {
        if (!OF_THE_IMAGE.includes(error.status)) {
          waiting.length = 0;
          throw error;
        }
        failures.set(image, error.message);
      }
      report(`${plural(answers.length + failures.size, "image")} of ${all}`);
    }
  };
  const ended = await Promise.allSettled(Array.from({ length: PARALLEL }, work));
  const broken = ended.find(({ status }) => status === "rejected");
  if (broken) throw broken.reason;
  return { answers, failures };
}

function contentAsUri(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/** {rows, patches} of an answer with one input: a dense vector is one row; patches: the box of each row, or null. */
function vectorsOf({ json: { data: [{ dense, colbert, patches }] } }) {
  return { rows: (colbert ?? [dense]).map((row) => Float32Array.from(row)), patches };
}

function itemOf([{ name, url }, ...words]) {
  const show = words.find((word) => typeof word === "function");
  const parts = [el("img", { src: url, alt: "" }), el("span", {}, words.filter((word) => word !== show)), el("span", { class: "note" }, name)];
  return el("li", {}, show ? el("button", { type: "button", onclick: show }, parts) : parts);
}

/** An image with its patches, the darker the more similar to the selected token of the query. Returns {node, show}. */
function matchesOf(names, rows) {
  const title = el("h3");
  const page = el("div", { class: "page" });
  const readout = el("output", { class: "number" });
  const words = ["all tokens", ...names];
  let selected = 0;
  let paint = () => {};
  const buttons = tokenButtons(words, (at) => {
    selected = at;
    paint();
  });
  const show = ({ name, url }, made) => {
    const boxes = made.patches.filter(Boolean); // without the rows of a text
    const ofTokens = similarities(rows, made.rows.filter((_, at) => made.patches[at]));
    const means = boxes.map((_, at) => ofTokens.reduce((sum, row) => sum + row[at], 0) / ofTokens.length);
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
    page.replaceChildren(el("img", { src: url, alt: name }),
      svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" }, squares));
    buttons.select(selected);
    page.scrollIntoView({ block: "nearest" });
  };
  return { node: el("div", { class: "result" }, title, buttons.node, page, readout), show };
}
