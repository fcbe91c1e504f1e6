// The charts: requests /console/live once per second while the page is visible, and draws differences of its sums.

import { get, whenAdmitted } from "./api.js";
import { Chart } from "./chart.js";
import { find, tableParts } from "./dom.js";
import { bytes, count, milliseconds, percent } from "./format.js";

const PERIOD_MS = 1000;
const PATIENCE_MS = 5000; // after a failure

const each = (name, format, top, ...series) => new Chart({ title: name, series, format, top });
const share = (name, ...series) => new Chart({ title: name, series, format: percent, top: 1, fixed: true });

const CHARTS = {
  requests: each("Requests a second", count, 10, "answered", "errors"),
  tokens: each("Tokens a second", count, 100, "answered", "run"),
  latency: each("Latency", milliseconds, 10, "p50", "p95", "p99"),
  queue: each("Queued tokens", count, 100, "interactive", "bulk"),
  fill: share("Batch fill", "of a full batch"),
  busy: share("Device", "busy", "saturation"),
  memory: each("Memory", bytes, 1e8, "process", "models"),
  cache: share("Cache", "hits"),
};

let before = null;
let timer = null;
let gpu = null; // only for devices with their own memory
let tell = () => {};

export function startLive(whenTold) {
  tell = whenTold;
  find("charts").append(...Object.values(CHARTS).map((chart) => chart.node));
  find("figures").addEventListener("toggle", fillTable);
  document.addEventListener("visibilitychange", resume);
  whenAdmitted(resume);
  resume();
}

function resume() {
  clearTimeout(timer);
  timer = null;
  before = null; // no rate for the time when the page was hidden
  if (document.visibilityState === "visible") ask();
}

async function ask() {
  const mine = (timer = setTimeout(() => {}, 0)); // identifies this loop: resume() starts another
  const again = (delayMs) => {
    if (timer === mine && document.visibilityState === "visible") timer = setTimeout(ask, delayMs);
  };
  try {
    const { json } = await get("console/live");
    if (timer !== mine) return;
    note("The last two minutes, one point per second.");
    tell(null);
    draw(json);
    again(PERIOD_MS);
  } catch (error) {
    if (timer !== mine) return;
    before = null;
    tell(error);
    note(error.message);
    if (error.status !== 401 && error.status !== 404) again(Math.max(PATIENCE_MS, 1000 * (error.retryAfterS ?? 0)));
  }
}

function draw(now) {
  if (before !== null && now.clock_s > before.clock_s && now.requests >= before.requests) drawStep(before, now);
  before = now;
}

function drawStep(old, now) {
  const seconds = now.clock_s - old.clock_s;
  const rate = (name) => (now[name] - old[name]) / seconds;
  const times = now.latency.counts.map((value, at) => value - old.latency.counts[at]);
  const quantile = (part) => percentileMs(times, now.latency.bounds_s, part);
  const forwards = now.forwards - old.forwards;
  const looked = now.cache.hits + now.cache.misses - old.cache.hits - old.cache.misses;
  CHARTS.requests.push([rate("requests"), rate("errors")]);
  CHARTS.tokens.push([rate("tokens"), rate("run_tokens")]);
  CHARTS.latency.push([quantile(0.5), quantile(0.95), quantile(0.99)]);
  CHARTS.queue.push([now.queued_tokens.interactive, now.queued_tokens.bulk]);
  CHARTS.fill.push([forwards > 0 ? (now.forward_fill - old.forward_fill) / forwards : null]);
  CHARTS.busy.push([now.busy, now.saturation]);
  CHARTS.memory.push([now.memory.resident_bytes, now.memory.models_bytes]);
  CHARTS.cache.push([looked > 0 ? (now.cache.hits - old.cache.hits) / looked : null]);
  drawDevices(Object.entries(now.devices));
  fillTable();
}

function drawDevices(devices) {
  if (devices.length === 0) return;
  if (gpu === null) {
    gpu = each("Device memory", bytes, 1e9, ...devices.slice(0, 3).map(([name]) => name));
    find("charts").append(gpu.node);
  }
  gpu.push(gpu.series.map((name) => devices.find(([other]) => other === name)?.[1].used_bytes ?? null));
}

/** The quantile `part`, interpolated within its bucket; null without values. */
export function percentileMs(counts, bounds, part) {
  const all = counts.reduce((sum, value) => sum + value, 0);
  if (all <= 0) return null;
  let below = 0;
  for (const [at, value] of counts.entries()) {
    if (value > 0 && below + value >= part * all) {
      const least = at === 0 ? 0 : bounds[at - 1];
      const most = bounds[at] ?? least;
      return 1000 * (least + ((part * all - below) / value) * (most - least));
    }
    below += value;
  }
  return 1000 * bounds.at(-1);
}

function fillTable() {
  if (!find("figures").open) return;
  const charts = gpu === null ? Object.values(CHARTS) : [...Object.values(CHARTS), gpu];
  const rows = charts.flatMap((chart) => chart.summary()).map((row) => [row.name, row.now, row.mean, row.least, row.most]);
  const number = "right number";
  const columns = [["figure", ""], ["now", number], ["mean", number], ["least", number], ["most", number]];
  find("figures-table").replaceChildren(...tableParts(columns, rows));
}

function note(words) {
  const place = find("load-note");
  if (place.textContent !== words) place.textContent = words;
}
