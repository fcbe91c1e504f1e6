// A chart with a title, current values, a time axis, and lines. Pointer and arrow keys select a moment; a tooltip describes it.

import { el, svg } from "./dom.js";
import { clockTime } from "./format.js";

const WIDTH = 1000; // of the drawing's own coordinates
const HEIGHT = 100;
const EDGE = 8; // pixels between a tooltip and the edge of the window
const GAP = 2.5; // steps without a value end a line
const TICKS_S = new Map([[120, 60], [900, 300], [3600, 900]]); // by range

export class Chart {
  /** about: the meaning, in plain words; series: names, in drawing order; format: turns a value into text; unit: after
   *  it in the tooltip; top: the minimum upper end of the axis. */
  constructor({ title, about, series, format, top, unit = "", fixed = false, kinds = ["s0", "s1", "s2"] }) {
    Object.assign(this, { about, series, format, top, unit, fixed, kinds });
    this.points = []; // {at, seconds, values}, by time
    this.now = series.map(() => null); // the values of the last second
    this.beginS = 0;
    this.rangeS = 1;
    this.shownS = null; // the selected moment
    this.words = series.map(() => el("b"));
    this.area = svg("path", { class: `area ${kinds[0]}` });
    this.paths = series.map((_, at) => svg("path", { class: kinds[at] }));
    this.marker = svg("line", { class: "at", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.tip = el("div", { class: "moment", hidden: true });
    this.ends = [el("span"), el("span")];
    this.axis = el("div", { class: "axis", "aria-hidden": "true" });
    const keys = series.map((name, at) => el("span", {}, el("i", { class: kinds[at] }), name ? `${name} ` : "", this.words[at]));
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
      [0, HEIGHT / 2].map((y) => svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y })), this.area, this.paths, this.marker);
    const look = (event) => this.#select(this.#momentAt(event.clientX));
    const leave = () => this.#select(null);
    this.plot = el("div", {
      class: "plot", tabindex: "0", role: "slider", "aria-label": `${title}, by time`, "aria-description": about, "aria-valuemin": "0",
      onpointermove: look, onpointerdown: look, onblur: leave, onkeydown: (event) => this.#step(event),
      onpointerleave: (event) => event.pointerType === "mouse" && leave(), // a touch ends, and its tooltip stays
      onfocus: () => this.plot.matches(":focus-visible") && this.#select(this.points.at(-1)?.at ?? null),
    }, this.drawing, this.ends, this.tip);
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, title), el("div", { class: "legend" }, keys), el("div", { class: "drawn" }, this.plot, this.axis));
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
    this.words.forEach((word, at) => (word.textContent = this.format(this.now[at])));
    this.#describe();
  }

  /** The tooltip and the marker of the selected moment, and its words for screen readers. */
  #describe() {
    const place = this.shownS === null ? -1 : this.#nearest(this.shownS);
    const point = this.points[place];
    const lines = this.series.map((name, at) => `${name}: ${this.format((point?.values ?? this.now)[at])}${this.unit}`);
    const moment = point ? clockTime(point.at, true) : "now";
    this.plot.setAttribute("aria-valuemax", Math.max(0, this.points.length - 1));
    this.plot.setAttribute("aria-valuenow", point ? place : Math.max(0, this.points.length - 1));
    this.plot.setAttribute("aria-valuetext", `${moment}, ${lines.join(", ")}`);
    this.marker.setAttribute("visibility", point ? "visible" : "hidden");
    this.tip.hidden = point === undefined;
    if (!point) return;
    const x = this.#x(point.at);
    for (const name of ["x1", "x2"]) this.marker.setAttribute(name, x);
    this.tip.replaceChildren(el("b", {}, moment), ...lines.map((line, at) => el("span", {}, el("i", { class: this.kinds[at] }), line)),
      el("span", { class: "note" }, this.about));
    const box = this.plot.getBoundingClientRect();
    const width = this.tip.offsetWidth;
    const left = box.left + (x / WIDTH) * box.width - width / 2;
    const most = document.documentElement.clientWidth - EDGE - width;
    this.tip.style.left = `${Math.max(EDGE, Math.min(most, left)) - box.left}px`;
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

  #select(momentS) {
    this.shownS = momentS;
    this.#describe();
  }

  #momentAt(clientX) {
    const box = this.drawing.getBoundingClientRect();
    return this.beginS + ((clientX - box.left) / box.width) * this.rangeS;
  }

  /** The index of the point that is nearest to a time; -1 without points. */
  #nearest(at) {
    const distances = this.points.map((point) => Math.abs(point.at - at));
    return distances.indexOf(Math.min(...distances));
  }

  #step(event) {
    const last = this.points.length - 1;
    const place = this.shownS === null ? last : this.#nearest(this.shownS);
    const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#select(null);
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.#select(this.points[Math.max(0, Math.min(last, next))].at);
  }
}

/** The next of 1, 2, 3, 4, 5, 6, 8, 10, 20, ...: their halves are short, too. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
