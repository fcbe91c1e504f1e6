// Dense vectors: one square per number, accent colour above zero and ink below.

import { post } from "./api.js";
import { el } from "./dom.js";
import { decimal, plural } from "./format.js";

const CELL = 8; // pixels of the canvas, which is scaled to its container
const text = el("textarea", { rows: "3", maxlength: "100000" }, "The bridge was closed after two days of rain.");
const body = ({ reading }) => ({ ...reading, inputs: [text.value] });

export const dense = {
  id: "dense",
  title: "Dense",
  about: "The vector of a text. Each square is one number: coloured if positive, grey if negative, stronger for larger values.",
  fields: el("label", {}, "Text", text),
  cannot: (model) => (model.outputs.includes("dense") ? null : `${model.name} makes no dense vectors.`),
  call: (asked) => ({
    method: "POST", path: "/vectord/embed", body: body(asked), operation: "embed", outputs: ["dense"], texts: [text.value],
  }),
  async run(asked) {
    const answer = await post("vectord/embed", body(asked));
    return { nodes: heatMap(answer.json.data[0].dense), answers: [answer] };
  },
};

function heatMap(numbers) {
  const columns = numbers.length <= 64 ? numbers.length : 2 ** Math.round(Math.log2(Math.sqrt(numbers.length * 6)));
  const rows = Math.ceil(numbers.length / columns);
  const largest = Math.max(...numbers.map(Math.abs)) || 1;
  const length = Math.hypot(...numbers);
  const summary = `${plural(numbers.length, "number")}, from ${decimal(Math.min(...numbers))} to ${decimal(Math.max(...numbers))}; length ${decimal(length)}`;
  const readout = el("output", { class: "number" }, "\u00a0");
  const map = el("canvas", {
    width: columns * CELL, height: rows * CELL, tabindex: "0", role: "img",
    "aria-label": `Heat map of ${summary}. Arrow keys go from number to number.`,
  });
  let at = null;
  const look = (place) => {
    at = Math.min(numbers.length - 1, Math.max(0, place));
    readout.textContent = `number ${at + 1}: ${decimal(numbers[at], 6)}`;
    draw();
  };
  const colours = ["plus", "minus"].map((name) => el("i", { class: name }));
  const draw = () => paint(map, numbers, { columns, largest, at, colours });
  map.addEventListener("pointermove", (event) => {
    const box = map.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    look(Math.floor(((event.clientY - box.top) / box.height) * rows) * columns + column);
  });
  map.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    look(at === null ? 0 : at + step);
  });
  document.addEventListener("theme", () => map.isConnected && draw());
  requestAnimationFrame(draw);
  const scale = el("p", { class: "note scale" }, colours[1], "negative", colours[0], "positive");
  return [
    el("p", { class: "note facts" }, el("span", {}, summary), scale),
    map, readout,
    el("details", {}, el("summary", {}, "All numbers"), el("pre", { tabindex: "0", class: "answer", role: "region", "aria-label": "All numbers" }, numbers.join(", "))),
  ];
}

function paint(map, numbers, { columns, largest, at, colours }) {
  const [plus, minus] = colours.map((node) => getComputedStyle(node).backgroundColor);
  const pen = map.getContext("2d");
  pen.clearRect(0, 0, map.width, map.height);
  numbers.forEach((number, index) => {
    pen.globalAlpha = Math.sqrt(Math.abs(number) / largest); // most are small compared with the largest
    pen.fillStyle = number > 0 ? plus : minus;
    pen.fillRect((index % columns) * CELL, Math.floor(index / columns) * CELL, CELL, CELL);
  });
  if (at === null) return;
  pen.globalAlpha = 1;
  pen.strokeStyle = minus;
  pen.strokeRect((at % columns) * CELL + 0.5, Math.floor(at / columns) * CELL + 0.5, CELL - 1, CELL - 1);
}
