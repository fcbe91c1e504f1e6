// A chart with a title, current values, a time axis, and lines. The pointer selects earlier values.

import { el, svg } from "./dom.js";
import { clockTime } from "./format.js";

const WIDTH = 1000; // of the drawing's own coordinates
const HEIGHT = 100;
const GAP = 2.5; // steps without a value end a line
const TICKS_S = new Map([[120, 60], [900, 300], [3600, 900]]); // by range

export class Chart {
  /** series: names, in drawing order; format: turns a value into text; top: the minimum upper end of the axis. */
  constructor({ title, series, format, top, fixed = false, kinds = ["s0", "s1", "s2"] }) {
    Object.assign(this, { title, series, format, top, fixed });
    this.points = []; // {at, seconds, values}, by time
    this.now = series.map(() => null); // the values of the last second
    this.beginS = 0;
    this.rangeS = 1;
    this.shown = null; // the point under the pointer
    this.words = series.map(() => el("b"));
    this.area = svg("path", { class: `area ${kinds[0]}` });
    this.paths = series.map((_, at) => svg("path", { class: kinds[at] }));
    this.marker = svg("line", { class: "at", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.moment = el("span", { class: "note" });
    this.ends = [el("span"), el("span")];
    this.axis = el("div", { class: "axis" });
    const keys = series.map((name, at) => el("span", {}, el("i", { class: kinds[at] }), name ? `${name} ` : "", this.words[at]));
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
      [0, HEIGHT / 2].map((y) => svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y })), this.area, this.paths, this.marker);
    const plot = el("div", { class: "plot" }, this.drawing, this.ends);
    plot.addEventListener("pointermove", (event) => this.#look(event));
    plot.addEventListener("pointerleave", () => this.#leave());
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, title, this.moment), el("div", { class: "legend" }, keys),
      el("div", { class: "drawn", "aria-hidden": "true" }, plot, this.axis));
  }

  /** points: [{at, seconds, values}], a value is null if missing; now: the values of the last second. */
  show({ points, now, endS, rangeS }) {
    Object.assign(this, { points, now, beginS: endS - rangeS, rangeS });
    this.#drawAxis();
    this.draw();
  }

  draw() {
    const largest = Math.max(this.top, ...this.points.flatMap(({ values }) => values.filter((value) => value != null)));
    const end = this.fixed ? this.top : rounded(largest);
    this.ends[0].textContent = this.format(end);
    this.ends[1].textContent = this.format(end / 2);
    this.paths.forEach((path, at) => path.setAttribute("d", this.#pathOf(at, end)));
    this.area.setAttribute("d", this.#pathOf(0, end, true));
    const values = this.shown?.values ?? this.now;
    this.words.forEach((word, at) => (word.textContent = this.format(values[at])));
    this.moment.textContent = this.shown ? clockTime(this.shown.at, true) : "";
    this.marker.setAttribute("visibility", this.shown ? "visible" : "hidden");
    if (this.shown) for (const name of ["x1", "x2"]) this.marker.setAttribute(name, this.#x(this.shown.at));
  }

  /** {name, now, mean, min, max} of each series. */
  summary() {
    return this.series.map((name, at) => {
      const known = this.points.map(({ values }) => values[at]).filter((value) => value != null);
      const mean = known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
      return {
        name: name ? `${this.title}, ${name}` : this.title,
        now: this.format(this.now[at]),
        mean: this.format(mean),
        min: this.format(known.length ? Math.min(...known) : null),
        max: this.format(known.length ? Math.max(...known) : null),
      };
    });
  }

  #x(at) {
    return ((at - this.beginS) / this.rangeS) * WIDTH;
  }

  /** Lines between adjacent values; an isolated value is a short line. closed: down to the axis, to be filled. */
  #pathOf(series, end, closed = false) {
    let path = "";
    let last = null; // the x of the line's end
    let before = null;
    for (const point of this.points) {
      const value = point.values[series];
      if (value != null) {
        const x = this.#x(point.at).toFixed(1);
        const y = (HEIGHT - (Math.min(value, end) / end) * HEIGHT * 0.98).toFixed(1);
        const joins = last !== null && point.at - before.at <= GAP * Math.max(point.seconds, before.seconds);
        if (!joins && closed && last !== null) path += `V${HEIGHT}Z`;
        path += joins ? `L${x} ${y}` : closed ? `M${x} ${HEIGHT}V${y}` : `M${x} ${y}h2`;
        last = x;
        before = point;
      } else {
        if (closed && last !== null) path += `V${HEIGHT}Z`;
        last = null;
      }
    }
    return closed && last !== null ? `${path}V${HEIGHT}Z` : path;
  }

  #drawAxis() {
    const everyS = TICKS_S.get(this.rangeS) ?? this.rangeS / 4;
    const zoneS = new Date(this.beginS * 1000).getTimezoneOffset() * 60;
    const ticks = [];
    const first = Math.ceil((this.beginS - zoneS) / everyS) * everyS + zoneS;
    for (let at = first; at <= this.beginS + this.rangeS; at += everyS) ticks.push(at);
    this.axis.replaceChildren(...ticks.map((at) => {
      const part = (at - this.beginS) / this.rangeS;
      const node = el("span", { class: part < 0.1 ? "first" : part > 0.9 ? "last" : "" }, clockTime(at, everyS < 60));
      node.style.left = `${100 * part}%`;
      return node;
    }));
  }

  #look(event) {
    if (this.points.length === 0) return;
    const box = this.drawing.getBoundingClientRect();
    const at = this.beginS + ((event.clientX - box.left) / box.width) * this.rangeS;
    this.shown = this.points.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best));
    this.draw();
  }

  #leave() {
    this.shown = null;
    this.draw();
  }
}

/** The next of 1, 2, 3, 4, 5, 6, 8, 10, 20, ...: their halves are short, too. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
