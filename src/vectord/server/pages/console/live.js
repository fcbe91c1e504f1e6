// Load: the hour that the server has kept, then its figures once a second while the page is visible.

import { get, whenAdmitted } from "./api.js";
import { Chart } from "./chart.js";
import { el, find, table } from "./dom.js";
import { bytes, count, duration, errorWords, milliseconds, percent } from "./format.js";
import { errorsIn, History, modelSums, percentileMs } from "./history.js";

const PERIOD_MS = 1000;
const PATIENCE_MS = 5000; // after a failure
const RANGES = [[120, "2 minutes"], [900, "15 minutes"], [3600, "1 hour"]];
const RANGE_KEPT_AS = "vectord-range";
const YOUNG_S = 300; // a server for whose figures 2 minutes are enough, unless the visitor has chosen
const REJECTED = /^(429|503) /;

const history = new History();
const number = "right number";

// `of`: the sums of the step, or of the selected model in it; charts without `model` show the whole server.
const A_SECOND = " a second";
const CHARTS = [
  { title: "Requests a second", about: "Failed: the server refused them, or could not answer.",
    series: ["answered", "failed"], format: count, unit: A_SECOND, top: 10, model: true, kinds: ["s0", "bad"],
    values: ({ seconds }, of) => [(of.requests - of.errors) / seconds, of.errors / seconds] },
  { title: "Response time", about: "Half of the requests took at most the first time, 95 of 100 the second, 99 of 100 the third.",
    series: ["half within", "95 % within", "99 % within"], format: milliseconds, top: 10, model: true,
    values: (step, of) => [0.5, 0.95, 0.99].map((part) => percentileMs(of.counts, history.bounds, part)) },
  { title: "Texts a second", about: "Texts of answered requests: inputs, passages and queries.",
    series: ["texts"], format: count, unit: A_SECOND, top: 10, model: true, values: ({ seconds }, of) => [of.texts / seconds] },
  { title: "Tokens a second", about: "A token is a word or a piece of one. Answers from the cache are not computed again.",
    series: ["answered", "computed"], format: count, unit: A_SECOND, top: 100, model: true,
    values: ({ seconds }, of) => [of.tokens / seconds, of.run_tokens === undefined ? null : of.run_tokens / seconds] },
  { title: "Time in the queue", about: "The mean wait of answered requests, and the time until all waiting texts are computed.",
    series: ["waited", "until empty"], format: milliseconds, top: 10,
    values: ({ waits, waited_s: waited, wait_s: left }) => [waits > 0 ? 1000 * waited / waits : null, 1000 * left] },
  { title: "Errors a second", about: "Client: a wrong request. Too busy: refused until there is less load. Server: a fault of this server.",
    series: ["client", "too busy", "server"], format: count, unit: A_SECOND, top: 1, kinds: ["s1", "s2", "bad"],
    values: (step) => errorRates(step) },
  { title: "Capacity in use", about: "Load: 100 % is all that the server can do. Batch: how full each computation is. Cache: texts that were found in it.",
    series: ["load", "batch", "cache"], format: percent, top: 1, fixed: true,
    values: ({ saturation, forwards, forward_fill: fill, cache_hits: hits, cache_misses: misses }) => (
      [saturation, forwards > 0 ? fill / forwards : null, hits + misses > 0 ? hits / (hits + misses) : null]) },
  { title: "Memory", about: "Of the whole process, and of the models' weights.",
    series: ["process", "models"], format: bytes, top: 1e8,
    values: ({ memory }) => [memory.resident_bytes, memory.models_bytes] },
].map((each) => ({ ...each, chart: new Chart(each) }));

const modelChoice = el("select", { id: "load-model", onchange: () => draw() });
const chosenS = Number(localStorage.getItem(RANGE_KEPT_AS));
let rangeS = chosenS || RANGES[1][0];
let isRangeOpen = !chosenS; // until the first figures
let timer = null;
let gpu = null; // a chart, for devices with their own memory
let tell = () => {};

/** whenTold: called with the latest figures, or null and the error. */
export function startLive(whenTold) {
  tell = whenTold;
  find("charts").append(...CHARTS.map(({ chart }) => chart.node));
  find("range").append(...RANGES.map(([seconds, name]) => el("label", {}, el("input", {
    type: "radio", name: "range", value: seconds, checked: seconds === rangeS, onchange: () => choose(seconds),
  }), el("span", {}, name))));
  find("load-model-place").append("Model ", modelChoice);
  document.addEventListener("visibilitychange", resume);
  whenAdmitted(resume);
  draw();
  resume();
}

function choose(seconds) {
  rangeS = seconds;
  isRangeOpen = false;
  localStorage.setItem(RANGE_KEPT_AS, seconds);
  draw();
}

function fitRange(uptimeS) {
  if (isRangeOpen && uptimeS < YOUNG_S) {
    [[rangeS]] = RANGES;
    find("range").querySelector("input").checked = true;
  }
  isRangeOpen = false;
}

function resume() {
  clearTimeout(timer);
  timer = null;
  if (document.visibilityState === "visible") ask(true);
}

/** begins: request the history first, since the page has missed a part of it. */
async function ask(begins = false) {
  const mine = (timer = setTimeout(() => {}, 0)); // identifies this loop: resume() starts another
  const again = (delayMs, fromHistory) => {
    if (timer === mine && document.visibilityState === "visible") timer = setTimeout(() => ask(fromHistory), delayMs);
  };
  try {
    const past = begins ? (await get("console/history")).json : null;
    const { json } = await get("console/live");
    if (timer !== mine) return;
    if (past !== null) history.reset(past);
    const continues = history.add(json);
    tell(json, null);
    noteOf(json);
    fitRange(json.uptime_s);
    if (continues) draw();
    again(continues ? PERIOD_MS : 0, !continues);
  } catch (error) {
    if (timer !== mine) return;
    tell(null, error);
    note(error.message);
    if (error.status !== 401 && error.status !== 404) again(Math.max(PATIENCE_MS, 1000 * (error.retryAfterS ?? 0)), true);
  }
}

function draw() {
  const steps = history.within(rangeS);
  const named = modelChoice.value;
  const sumsOf = (step) => (named ? modelSums([step], named) : step);
  const shown = { endS: history.endS, rangeS };
  for (const { chart, values, model } of CHARTS) {
    const valuesOf = (step) => values(step, model ? sumsOf(step) : step);
    const points = steps.map((step) => ({ at: step.ended_unix_s, seconds: step.seconds, values: valuesOf(step) }));
    const now = history.latest ? valuesOf(history.latest) : chart.series.map(() => null);
    chart.node.classList.toggle("whole", Boolean(named) && !model);
    chart.show({ points, now, ...shown });
  }
  drawDevices(steps, shown);
  drawErrors(steps);
  drawModels(steps);
}

function errorRates({ errors_by: errors, seconds }) {
  const rates = [0, 0, 0];
  for (const [name, many] of Object.entries(errors)) rates[REJECTED.test(name) ? 1 : name < "5" ? 0 : 2] += many / seconds;
  return rates;
}

function drawDevices(steps, shown) {
  const names = Object.keys(history.now?.devices ?? {}).slice(0, 3);
  if (names.length === 0) return;
  if (gpu === null) {
    gpu = new Chart({ title: "Device memory", about: "Memory in use of each GPU.", series: names, format: bytes, top: 1e9 });
    find("charts").append(gpu.node);
  }
  const valuesOf = (step) => gpu.series.map((name) => step.devices[name] ?? null);
  const points = steps.map((step) => ({ at: step.ended_unix_s, seconds: step.seconds, values: valuesOf(step) }));
  gpu.show({ points, now: history.latest ? valuesOf(history.latest) : names.map(() => null), ...shown });
}

function drawErrors(steps) {
  const errors = errorsIn(steps);
  const rows = errors.map(([name, many]) => [name.slice(0, 3), errorWords(name.slice(4)) || "unknown", many.toLocaleString("en")]);
  find("errors").replaceChildren(rows.length
    ? table([["status", "number"], ["reason", ""], ["requests", number]], rows)
    : el("p", { class: "note empty" }, "No errors in this time."));
}

function drawModels(steps) {
  const names = Object.keys(history.now?.models ?? {});
  offer(names);
  const rows = names.map((name) => [name, modelSums(steps, name)]).filter(([, sums]) => sums.requests > 0)
    .sort((one, other) => other[1].requests - one[1].requests)
    .map(([name, { requests, errors, tokens, texts, truncated, counts }]) => [
      name, count(requests), milliseconds(percentileMs(counts, history.bounds, 0.5)),
      milliseconds(percentileMs(counts, history.bounds, 0.95)), count(texts), count(tokens),
      texts ? percent(truncated / texts) : percent(null), el("span", { class: errors ? "bad" : "" }, errors.toLocaleString("en")),
    ]);
  const columns = [["model", "wrap"], ["requests", number], ["half within", number], ["95 % within", number], ["texts", number],
    ["tokens", number], ["truncated", number], ["failed", number]];
  find("by-model").replaceChildren(rows.length
    ? table(columns, rows)
    : el("p", { class: "note empty" }, "No requests in this time."));
}

function offer(names) {
  const known = [...modelChoice.options].slice(1).map((option) => option.value);
  find("load-model-place").hidden = names.length < 2;
  if (known.join("\n") === names.join("\n") && modelChoice.options.length) return;
  const chosen = modelChoice.value;
  modelChoice.replaceChildren(el("option", { value: "" }, "all"), ...names.map((name) => el("option", { value: name }, name)));
  modelChoice.value = names.includes(chosen) ? chosen : "";
}

function noteOf({ version, uptime_s: up, memory, grafana_url: grafana }) {
  note(`Version ${version}, up ${duration(up)}${memory.resident_bytes ? `, ${bytes(memory.resident_bytes)} of memory` : ""}`);
  find("grafana").hidden = !grafana;
  if (grafana) find("grafana").href = grafana;
}

function note(text) {
  const place = find("load-note");
  if (place.textContent !== text) place.textContent = text;
}
