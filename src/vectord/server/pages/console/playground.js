// The playground: tools as tabs, each with the models that it works with, and its request as code.

import { get } from "./api.js";
import { any } from "./any.js";
import { showCode, startCode } from "./code.js";
import { colbert } from "./colbert.js";
import { dense } from "./dense.js";
import { el, find } from "./dom.js";
import { milliseconds, plural } from "./format.js";
import { matrix } from "./matrix.js";
import { rerank } from "./rerank.js";
import { sparse } from "./sparse.js";
import { tokens } from "./tokens.js";

// A tool: {id, title, about, fields, cannot(model), call(), run(context)}; call: its request, for code.js.
const TOOLS = [matrix, dense, sparse, colbert, rerank, tokens, any];

const views = new Map(); // by tool
let models = [];
let current = null;
let chosen = ""; // the model that the visitor selected, for every tool that works with it

const model = el("select", { onchange: () => { chosen = model.value; changed(); } });
const overlong = el("select", { onchange: changed },
  el("option", { value: "" }, "as the server is set"),
  el("option", { value: "true" }, "cut"),
  el("option", { value: "false" }, "refuse"));
const shared = el("div", { class: "row" },
  el("label", { class: "grow" }, "Model", model), el("label", {}, "Over-long texts", overlong));

/** follow: calls a function with the list of models, now and after each change. */
export async function startPlayground(follow) {
  for (const tool of TOOLS) views.set(tool, viewOf(tool));
  find("tabs").append(...[...views.values()].map((view) => view.tab));
  open(matrix);
  follow(setModels);
  try {
    const { json } = await get("console/calls");
    any.setCalls(json);
    startCode(json, () => context());
    changed();
  } catch (error) {
    find("code-note").textContent = error.message;
  }
}

function viewOf(tool) {
  const result = el("div", { class: "result" });
  const status = el("p", { class: "note", role: "status" });
  const run = el("button", { type: "submit", class: "main" }, "Run");
  const form = el("form", {
    onsubmit: (event) => {
      event.preventDefault();
      if (!run.disabled) answer(tool);
    },
    oninput: changed,
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    },
  }, el("p", { class: "note about" }, tool.about), el("div", { class: "shared" }), tool.fields, el("div", { class: "row run" }, run, status));
  const tab = el("button", {
    type: "button", role: "tab", id: `tab-${tool.id}`, "aria-controls": "tool", "aria-selected": "false", tabindex: "-1",
    onclick: () => open(tool), onkeydown: step,
  }, tool.title);
  return { tab, form, run, status, result };
}

function open(tool) {
  current = tool;
  for (const [other, view] of views) {
    view.tab.setAttribute("aria-selected", String(other === tool));
    view.tab.tabIndex = other === tool ? 0 : -1;
  }
  const view = views.get(tool);
  view.form.querySelector(".shared").replaceChildren(...(tool === any ? [] : [shared]));
  find("tool").setAttribute("aria-labelledby", view.tab.id);
  find("tool").replaceChildren(view.form, view.result);
  offerModels();
  changed();
}

/** The models that the tool works with. */
function capable(tool) {
  return tool === any ? models : models.filter((each) => tool.cannot(each) === null);
}

function offerModels() {
  const names = capable(current).map((each) => each.name);
  model.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  if (names.includes(chosen)) model.value = chosen;
}

/** Arrow keys select tabs. */
function step(event) {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const shown = TOOLS.filter((tool) => !views.get(tool).tab.hidden);
  const place = shown.indexOf(current);
  const next = event.key === "Home" ? 0 : event.key === "End" ? shown.length - 1 : place + (move ?? 0);
  if (next === place) return;
  event.preventDefault();
  open(shown[(next + shown.length) % shown.length]);
  views.get(current).tab.focus();
}

function setModels(list) {
  models = list;
  for (const [tool, view] of views) view.tab.hidden = models.length > 0 && tool !== any && capable(tool).length === 0;
  if (views.get(current).tab.hidden) return open(TOOLS.find((tool) => !views.get(tool).tab.hidden));
  offerModels();
  changed();
}

function context() {
  const asked = models.find((each) => each.name === model.value);
  const reading = { model: asked?.name };
  if (overlong.value) reading.truncate = overlong.value === "true";
  return { model: asked, reading };
}

function changed() {
  const asked = context();
  for (const [tool, view] of views) {
    const reason = reasonOf(tool, asked.model);
    view.run.disabled = reason !== null;
    if (reason !== view.reason) view.status.textContent = reason ?? "";
    view.reason = reason;
  }
  current.follow?.(asked);
  showCode(asked.model || current === any ? current.call(asked) : null);
}

/** The reason why a tool is unavailable, null if it is available. */
function reasonOf(tool, asked) {
  if (tool === any) return null;
  if (asked === undefined) return "No model is available yet.";
  return tool.cannot(asked) ?? (asked.state === "failed" ? `${asked.name} failed to load; the log says why.` : null);
}

async function answer(tool) {
  const view = views.get(tool);
  view.run.disabled = true;
  view.status.classList.remove("bad");
  view.status.textContent = "running";
  try {
    const { nodes, answers } = await tool.run(context());
    view.status.textContent = answers.map(toldOf).join("; ");
    view.result.replaceChildren(...nodes);
  } catch (error) {
    view.status.classList.add("bad");
    view.status.textContent = error.message;
    view.result.replaceChildren();
  }
  view.run.disabled = view.reason !== null;
}

/** The tokens read and the time. */
function toldOf({ json, lengths, name }) {
  const parts = [];
  if (lengths.seen !== null) parts.push(readOf(lengths));
  if (json?.timings) {
    const { total_ms: total, queue_ms: queue, inference_ms: inference } = json.timings;
    parts.push(`${milliseconds(total)} (queue ${milliseconds(queue)}, model ${milliseconds(inference)})`);
  }
  return `${name ? `${name}: ` : ""}${parts.join(", ")}`;
}

function readOf({ seen, kept, cut, cutInputs, queryCut }) {
  if (cut === 0 && !queryCut) return `${plural(seen, "token")}, all read`;
  const which = [...(queryCut ? ["the query"] : []), ...cutInputs.map((index) => `text ${index + 1}`)];
  return `${plural(seen, "token")}, ${kept.toLocaleString("en")} read: ${which.join(", ") || plural(cut, "text")} cut`;
}
