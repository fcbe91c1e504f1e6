// The models that this key may use: requested every few seconds, shown in a table, and passed to the playground.

import { get, poll, post } from "./api.js";
import { el, find, tableParts } from "./dom.js";
import { plural } from "./format.js";

const PERIOD_MS = 5000;
const PULL_PERIOD_MS = 500; // for the progress of a download

let shown = "";
let refresh = () => {}; // asks at once, after startModels
let manages = false; // whether this key may load and unload models
let busy = ""; // the model that is being loaded or unloaded
const listeners = new Set();

/** whenChanged: called with the list after each change. */
export function startModels(whenChanged) {
  listeners.add(whenChanged);
  find("pull").addEventListener("submit", (event) => {
    event.preventDefault();
    pull(find("pull-name").value.trim());
  });
  refresh = poll(PERIOD_MS, ask, fail);
}

/** allowed: whether the server lets this key load and unload models. */
export function allowManaging(allowed) {
  if (allowed === manages) return;
  manages = allowed;
  find("pull").hidden = !allowed;
  refresh();
}

async function ask() {
  show((await get("vectord/models")).json);
}

function fail(error) {
  find("models-note").textContent = error.message;
  shown = "";
}

function show({ models, limits }) {
  const state = JSON.stringify([models, limits, manages, busy]);
  if (state === shown) return;
  shown = state;
  find("models-note").textContent =
    `${plural(models.length, "model")}. At most ${plural(limits.max_inputs_per_request, "input")} a request, ` +
    `${plural(limits.max_batch_tokens, "token")} a batch.`;
  const columns = [["name", ""], ["state", ""], ["outputs", ""], ["dimensions", "right number"], ["max tokens", "right number"],
    ["architecture", ""], ["backend", ""], ["fingerprint", "number"], ...(manages ? [["action", "right"]] : [])];
  find("models-table").replaceChildren(...tableParts(columns, models.map(rowOf)));
  for (const listener of listeners) listener(models);
}

function rowOf(model) {
  const words = model.failure ? `${model.state}: ${model.failure}` : model.state;
  const state = el("span", { class: "model-state", "data-state": model.state }, words);
  const runs = model.backend === "unknown" ? "\u2013" : `${model.backend}, ${model.device}, ${model.dtype}`;
  return [model.name, state, outputsOf(model).join(", "), model.dimensions || "\u2013",
    model.max_input_tokens ? model.max_input_tokens.toLocaleString("en") : "\u2013", model.architecture, runs, model.fingerprint,
    ...(manages ? [buttonOf(model)] : [])];
}

function buttonOf({ name, state }) {
  const action = state === "ready" || state === "stalled" ? "unload" : "load";
  const words = action === "load" ? "Load" : "Unload";
  return el("button", {
    type: "button", "aria-label": `${words} ${name}`, disabled: busy !== "" || state === "loading", onclick: () => manage(name, action),
  }, words);
}

const order = async (name, action) =>
  (await post(`vectord/models/${name.split("/").map(encodeURIComponent).join("/")}/${action}`, {})).json;

async function manage(name, action) {
  await run(name, `${action}ing`, async () => {
    await order(name, action);
    return `${action}ed`;
  });
}

/** Begins the pull, then asks for its progress until the model is served. */
async function pull(name) {
  const bar = find("pull-bar");
  const button = find("pull").querySelector("button");
  button.disabled = true;
  await run(name, "pulling", async () => {
    for (;;) {
      const report = await order(name, "pull");
      if (report.state === "served") return "served; it loads on its first use";
      bar.hidden = !report.total_bytes;
      bar.max = report.total_bytes || 1;
      bar.value = report.done_bytes;
      if (report.total_bytes) {
        find("models-status").textContent =
          `${name}: ${megabytes(report.done_bytes)} of ${megabytes(report.total_bytes)} MB`;
      }
      await new Promise((resolve) => setTimeout(resolve, PULL_PERIOD_MS));
    }
  });
  bar.hidden = true;
  button.disabled = false;
}

const megabytes = (bytes) => (bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 });

/** Shows what is done with the model, and the result of `work` or its error. */
async function run(name, doing, work) {
  const status = find("models-status");
  busy = name;
  refresh();
  status.classList.remove("bad");
  status.textContent = `${name}: ${doing}`;
  try {
    status.textContent = `${name}: ${await work()}`;
  } catch (error) {
    status.classList.add("bad");
    status.textContent = error.message.includes(name) ? error.message : `${name}: ${error.message}`;
  }
  busy = "";
  refresh();
}

function outputsOf(model) {
  const kinds = model.outputs.filter((kind) => kind !== "tokens");
  return [...kinds, ...(model.reranks ? ["rerank scores"] : []), ...(model.labels.length ? ["labels"] : [])];
}
