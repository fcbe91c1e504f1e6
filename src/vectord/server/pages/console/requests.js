// Recent requests that this key may see: requested every few seconds, with their outcome and without their text.

import { get, poll } from "./api.js";
import { el, find, table } from "./dom.js";
import { clockTime, count, errorWords, milliseconds, plural } from "./format.js";

const PERIOD_MS = 3000;

let requests = [];
let problem = ""; // the reason why there are no new requests
let shown = "";

export function startRequests() {
  find("errors-only").addEventListener("change", show);
  poll(PERIOD_MS, ask, fail);
}

async function ask() {
  requests = (await get("console/requests")).json.requests;
  problem = "";
  show();
}

function fail(error) {
  if (error.status > 0) requests = [];
  problem = error.message;
  show();
}

function show() {
  const onlyErrors = find("errors-only").checked;
  const listed = onlyErrors ? requests.filter((request) => request.status >= 400) : requests;
  const state = JSON.stringify([onlyErrors, listed, problem]);
  if (state === shown) return;
  shown = state;
  const namesKeys = requests.some((request) => request.key !== null);
  find("requests-note").textContent =
    problem || (requests.length ? `The last ${plural(requests.length, "request")}, without their texts.` : "");
  const number = "right number";
  const columns = [["time", "number"], ["request", ""], ["API", ""], ["model", ""], ["outcome", ""], ["texts", number],
    ["tokens", number], ["duration", number], ...(namesKeys ? [["key", ""]] : [])];
  find("requests-table").replaceChildren(listed.length
    ? table(columns, listed.map((request) => rowOf(request, namesKeys)))
    : problem ? "" : el("p", { class: "note empty" }, onlyErrors ? "No errors among the recent requests." : "No requests yet."));
}

function rowOf(request, namesKeys) {
  const outcome = el("span", { class: `outcome ${request.status >= 500 ? "bad" : request.status >= 400 ? "warn" : "good"}` },
    el("b", {}, request.status), request.error ? ` ${errorWords(request.error)}` : "");
  return [clockTime(request.ended_unix_s, true), el("span", {}, el("span", { class: "method" }, `${request.method} `), request.route || "(no such path)"), request.dialect,
    request.model ?? "\u2013", outcome, count(request.texts), count(request.tokens), milliseconds(request.ms),
    ...(namesKeys ? [request.key ?? "\u2013"] : [])];
}
