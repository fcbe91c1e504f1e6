// The models that this key may use: requested every few seconds, shown in a table, and passed to the playground.

import { get, whenAdmitted } from "./api.js";
import { el, find, tableParts } from "./dom.js";
import { plural } from "./format.js";

const PERIOD_MS = 5000;

let shown = "";
let timer = null;
const listeners = new Set();

/** whenChanged: called with the list after each change. */
export function startModels(whenChanged) {
  listeners.add(whenChanged);
  document.addEventListener("visibilitychange", ask);
  whenAdmitted(ask);
  ask();
}

async function ask() {
  clearTimeout(timer);
  if (document.visibilityState !== "visible") return;
  let again = true;
  try {
    const { json } = await get("vectord/models");
    show(json);
  } catch (error) {
    find("models-note").textContent = error.message;
    again = error.status !== 401 && error.status !== 404;
    shown = "";
  }
  clearTimeout(timer);
  if (again) timer = setTimeout(ask, PERIOD_MS);
}

function show({ models, limits }) {
  const state = JSON.stringify([models, limits]);
  if (state === shown) return;
  shown = state;
  find("models-note").textContent =
    `${plural(models.length, "model")}. At most ${plural(limits.max_inputs_per_request, "input")} a request, ` +
    `${plural(limits.max_batch_tokens, "token")} a batch.`;
  const columns = [["name", ""], ["state", ""], ["gives", ""], ["dimensions", "right number"], ["reads", "right number"],
    ["architecture", ""], ["runs on", ""], ["vector space", "number"]];
  find("models-table").replaceChildren(...tableParts(columns, models.map(rowOf)));
  for (const listener of listeners) listener(models);
}

function rowOf(model) {
  const state = el("span", { class: model.state === "failed" || model.state === "stalled" ? "bad" : "" }, model.state);
  const runs = model.backend === "unknown" ? "\u2013" : `${model.backend}, ${model.device}, ${model.dtype}`;
  return [model.name, state, gives(model).join(", "), model.dimensions || "\u2013",
    model.max_input_tokens.toLocaleString("en"), model.architecture, runs, model.fingerprint];
}

function gives(model) {
  const kinds = model.outputs.filter((kind) => kind !== "tokens");
  return [...kinds, ...(model.reranks ? ["scores of pairs"] : []), ...(model.labels.length ? ["labels"] : [])];
}
