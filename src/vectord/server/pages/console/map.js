// A map of texts: near texts have near vectors. Lines or a dropped file; a search lists and marks the nearest texts.

import { agreementOf } from "./agreement.js";
import { post, totalOf } from "./api.js";
import { el, scrolling, svg, table } from "./dom.js";
import { dropZone, linesOf, textsOf } from "./files.js";
import { decimal, plural } from "./format.js";
import { dot, groupsOf, planeOf } from "./projection.js";
import { bar } from "./rerank.js";

const MAX_TEXTS = 2000;
const BATCH = 64; // texts a request
const GROUPS = 6; // colours
const NAMED = 40; // texts that are written next to their points
const NEAREST = 10;
const COMPARED = 100; // texts whose neighbours by two models are compared
const MAX_WIDTH = 720;
const MIN_WIDTH = 300; // of a phone, whose labels would be too small to read in a wider drawing
const HEIGHT = 440;
const MARGIN = 24;
const SHOWN_CHARACTERS = 34;
const CHARACTER_WIDTH = 6; // of a label, about

const texts = el("textarea", { rows: "8", maxlength: "200000" }, [
  "The bridge was closed after two days of rain.", "Flooding shut the river crossing.", "Snow is expected in the hills tonight.",
  "The bakery opens at six.", "Fresh bread every morning.", "Knead the dough for ten minutes.",
  "The striker scored twice in the final.", "The match ended without a goal.", "She won the marathon in record time.",
  "The central bank raised interest rates.", "Shares fell after the report.", "Inflation slowed in the spring.",
].join("\n"));
const field = el("label", {}, "Texts, one per line", texts);
const fileNote = el("span", { class: "note", role: "status" });
const remove = el("button", { type: "button", hidden: true, onclick: () => take([]) }, "Remove the file");
const drop = dropZone("Or drop a file here: lines, CSV, JSON or JSON lines",
  { accept: ".txt,.md,.csv,.tsv,.json,.jsonl,.ndjson,text/*" }, take, fileNote, remove);
let dropped = null; // the texts of a file

async function take([file]) {
  fileNote.classList.remove("bad");
  try {
    dropped = file ? await textsOf(file, MAX_TEXTS) : null;
    fileNote.textContent = file ? `${file.name}: ${plural(dropped.length, "text")}` : "";
  } catch (error) {
    dropped = null;
    fileNote.classList.add("bad");
    fileNote.textContent = error.message;
  }
  if (!file) drop.querySelector("input").value = "";
  field.hidden = dropped !== null;
  remove.hidden = dropped === null;
  drop.dispatchEvent(new Event("input", { bubbles: true })); // the code next to the form
}

const given = () => dropped ?? linesOf(texts.value).slice(0, MAX_TEXTS);
// The end of a text that is too long matters little on a map.
const body = ({ reading }, inputs, kind) => ({ truncate: true, ...reading, inputs, kind });

export const map = {
  id: "map",
  title: "Map",
  about: `Dense vectors of up to ${MAX_TEXTS.toLocaleString("en")} texts on a plane: texts with similar meanings are near each other. Colours are groups; of two models, those of the first.`,
  fields: [field, drop],
  cannot: (model) => (model.outputs.includes("dense") ? null : `${model.name} makes no dense vectors.`),
  calls: (asked) => [{ path: "/vectord/embed", body: body(asked, given().slice(0, BATCH), "document") }],
  note: () => (given().length > BATCH ? `The first ${BATCH} texts; the others are sent in the same way.` : ""),
  async run(asked, report, first) {
    const inputs = given();
    if (inputs.length < 3) throw new Error("A map needs at least three texts.");
    const vectors = [];
    const answers = [];
    const began = performance.now();
    for (let at = 0; at < inputs.length; at += BATCH) {
      const answer = await post("vectord/embed", body(asked, inputs.slice(at, at + BATCH), "document"));
      vectors.push(...answer.json.data.map((each) => each.dense));
      answers.push(answer);
      if (inputs.length > BATCH) report(`${plural(vectors.length, "text")} of ${inputs.length.toLocaleString("en")}`);
    }
    const groups = first?.groups ?? groupsOf(vectors, GROUPS); // a text has one colour on both maps
    const maps = first?.maps ?? []; // of all models that are compared
    const { nodes, ...shown } = drawn(inputs, vectors, groups, (at) => maps.forEach((each) => each.select(at)));
    maps.push({ asked, vectors, ...shown });
    return {
      nodes, above: [searchOf(maps)], groups, maps, answers: [totalOf(answers, began)],
      scores: () => vectors.slice(0, COMPARED).map((vector, at) => scoresOf(vector, vectors).toSpliced(at, 1)),
    };
  },
};

const scoresOf = (vector, vectors) => vectors.map((each) => dot(vector, each));

/** {nodes, select(at), search(vector)}: the map of a model; select lists the neighbours of a text, search those of a query. */
function drawn(names, vectors, groups, choose) {
  const width = Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, drop.clientWidth));
  const plane = planeOf(vectors);
  const place = placing(plane.points, width);
  const found = el("div", { class: "found" });
  const tip = el("output", { class: "note tip" }, "Point at a text, or select it to list its neighbours.");
  const places = plane.points.map(place);
  const labels = names.length <= NAMED ? labelsOf(names, places, width) : [];
  const dots = names.map((name, at) => svg("circle", {
    class: `point g${groups[at]}`, cx: places[at][0], cy: places[at][1], r: labels.length ? 5 : 3.5,
    tabindex: "0", role: "button", "aria-label": name,
    onpointerenter: () => (tip.textContent = name), onfocus: () => (tip.textContent = name),
    onclick: () => choose(at), onkeydown: (event) => event.key === "Enter" && choose(at),
  }));
  const sought = svg("g", { class: "sought", visibility: "hidden" }, svg("path", { d: "M-7 0H7M0 -7V7" }));
  const drawing = svg("svg", { class: "map", viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": `Map of ${plural(names.length, "text")}` },
    svg("g", { "aria-hidden": "true" }, labels), dots, sought);

  const list = (vector, title, leave) => {
    const scores = scoresOf(vector, vectors);
    const most = Math.min(NEAREST, Math.ceil(names.length / 3));
    const order = [...scores.keys()].filter((at) => at !== leave).sort((one, other) => scores[other] - scores[one]).slice(0, most);
    dots.forEach((node, at) => {
      for (const part of [node, labels[at]]) {
        part?.classList.toggle("near", order.includes(at));
        part?.classList.toggle("self", at === leave);
      }
    });
    drawing.classList.add("searched");
    const rows = order.map((at, rank) => [rank + 1, names[at], decimal(scores[at], 3), bar(scores[at])]);
    found.replaceChildren(el("h3", {}, title), scrolling(title, table(
      [["rank", "right number"], ["text", "wrap"], ["cosine", "right number"], ["bar", "track"]], rows, { class: "ranks" })));
  };
  return {
    nodes: [drawing, tip, found],
    select(at) {
      sought.setAttribute("visibility", "hidden");
      list(vectors[at], "Neighbours of the selected text", at);
    },
    search(vector) {
      const [x, y] = place(plane.of(vector));
      sought.setAttribute("transform", `translate(${x} ${y})`);
      sought.setAttribute("visibility", "visible");
      list(vector, "Nearest texts");
    },
  };
}

/** One search of the maps of all models that are compared. */
function searchOf(maps) {
  const query = el("input", { type: "search", maxlength: "20000", placeholder: "for example: weather" });
  const status = el("p", { class: "note", role: "status" });
  const search = async (event) => {
    event.preventDefault();
    status.textContent = "";
    if (!query.value.trim()) return;
    try {
      const scores = [];
      for (const { asked, vectors, search: show } of maps) {
        const { json } = await post("vectord/embed", body(asked, [query.value], "query"));
        const vector = json.data[0].dense;
        show(vector);
        scores.push([scoresOf(vector, vectors)]);
      }
      if (scores.length > 1) status.textContent = `This search: ${agreementOf(...scores)}`;
    } catch (error) {
      status.textContent = error.message;
    }
  };
  return el("form", { class: "search", onsubmit: search }, el("div", { class: "row" },
    el("label", { class: "grow" }, "Search these texts", query), el("button", { type: "submit" }, "Search")), status);
}

/** From a point of the plane to the drawing, which shows all points of it. */
function placing(points, width) {
  const [left, right, low, high] = [0, 1].flatMap((axis) => {
    const values = points.map((point) => point[axis]);
    return [values.reduce((one, other) => Math.min(one, other)), values.reduce((one, other) => Math.max(one, other))];
  });
  const share = (value, least, most) => Math.min(1.02, Math.max(-0.02, (value - least) / (most - least || 1)));
  return ([x, y]) => [
    MARGIN + share(x, left, right) * (width - 2 * MARGIN),
    HEIGHT - MARGIN - share(y, low, high) * (HEIGHT - 2 * MARGIN),
  ].map((value) => Number(value.toFixed(1)));
}

/** The label of each point, to its right or its left; null where it would cover another. */
function labelsOf(names, places, width) {
  const taken = places.map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
  return names.map((name, at) => {
    const [x, y] = places[at];
    const text = name.length > SHOWN_CHARACTERS ? `${name.slice(0, SHOWN_CHARACTERS)}\u2026` : name;
    const long = text.length * CHARACTER_WIDTH;
    const boxes = [[x + 8, y - 7, x + 8 + long, y + 7], [x - 8 - long, y - 7, x - 8, y + 7]];
    const side = boxes.findIndex((box) => box[0] >= 0 && box[2] <= width && !taken.some((other) => overlap(box, other)));
    if (side < 0) return null;
    taken.push(boxes[side]);
    return svg("text", { class: "name", x: side === 0 ? x + 9 : x - 9, y: y + 4, "text-anchor": side === 0 ? "start" : "end" }, text);
  });
}

const overlap = (one, other) => one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3];
