// A chart with a title, current values, and lines of the last two minutes. The pointer selects earlier values.

import { el, svg } from "./dom.js";

export const POINTS = 120;
const WIDTH = 240;
const HEIGHT = 62;

export class Chart {
  /** series: names, in drawing order; format: turns a value into text; top: the minimum upper end of the axis. */
  constructor({ title, series, format, top, fixed = false }) {
    Object.assign(this, { title, series, format, top, fixed });
    this.values = series.map(() => Array(POINTS).fill(null));
    this.shown = null; // the point under the pointer, null for the latest
    this.words = series.map(() => el("b"));
    this.paths = series.map((_, at) => svg("path", { class: `s${at}` }));
    this.marker = svg("line", { class: "at", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.limit = el("span", { class: "note" });
    const keys = series.map((name, at) => el("span", {}, el("i", { class: `s${at}` }), name ? `${name} ` : "", this.words[at]));
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }), this.paths, this.marker);
    this.drawing.addEventListener("pointermove", (event) => this.#look(event));
    this.drawing.addEventListener("pointerleave", () => this.#leave());
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, title, this.limit), el("div", { class: "legend" }, keys), this.drawing);
    this.draw();
  }

  /** One value per series, null if missing. */
  push(values) {
    values.forEach((value, at) => {
      this.values[at].push(value);
      this.values[at].shift();
    });
    this.draw();
  }

  draw() {
    const largest = Math.max(this.top, ...this.values.flat().filter((value) => value != null));
    const end = this.fixed ? this.top : rounded(largest);
    this.limit.textContent = this.shown == null ? `0 \u2013 ${this.format(end)}` : `${POINTS - 1 - this.shown} s ago`;
    this.values.forEach((line, at) => {
      this.paths[at].setAttribute("d", pathOf(line, end));
      this.words[at].textContent = this.format(line[this.shown ?? POINTS - 1]);
    });
  }

  /** {name, now, mean, least, most} of each series. */
  summary() {
    return this.series.map((name, at) => {
      const known = this.values[at].filter((value) => value != null);
      const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
      return {
        name: name ? `${this.title}, ${name}` : this.title,
        now: this.format(this.values[at][POINTS - 1]),
        mean: this.format(mean),
        least: this.format(known.length ? Math.min(...known) : null),
        most: this.format(known.length ? Math.max(...known) : null),
      };
    });
  }

  #look(event) {
    const box = this.drawing.getBoundingClientRect();
    const at = Math.round(((event.clientX - box.left) / box.width) * (POINTS - 1));
    this.shown = Math.min(POINTS - 1, Math.max(0, at));
    const x = xOf(this.shown);
    for (const [name, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.marker.setAttribute(name, value);
    this.draw();
  }

  #leave() {
    this.shown = null;
    this.marker.setAttribute("visibility", "hidden");
    this.draw();
  }
}

const xOf = (at) => (at / (POINTS - 1)) * WIDTH;

/** Lines between adjacent values; an isolated value is a short line. */
function pathOf(line, end) {
  let path = "";
  let pen = false;
  line.forEach((value, at) => {
    if (value != null) {
      const x = xOf(at).toFixed(1);
      const y = (HEIGHT - 1 - (Math.min(value, end) / end) * (HEIGHT - 3)).toFixed(1);
      path += pen ? `L${x} ${y}` : `M${x} ${y}h1`;
    }
    pen = value != null;
  });
  return path;
}

/** The next of 1, 2, 5, 10, 20, ... */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
