// The playground: tools as tabs, each with the models that it works with, and its request as code.

import { agreementOf } from "./agreement.js";
import { get } from "./api.js";
import { showCode, startCode } from "./code.js";
import { colbert } from "./colbert.js";
import { dense } from "./dense.js";
import { el, find } from "./dom.js";
import { milliseconds, plural } from "./format.js";
import { images } from "./images.js";
import { map } from "./map.js";
import { matrix } from "./matrix.js";
import { rerank } from "./rerank.js";
import { sparse } from "./sparse.js";
import { tokens } from "./tokens.js";

// A tool: {id, title, about, fields, cannot(model), prefers(model), calls(context), run(context, report, first)}.
// calls: its requests, for code.js, and note() about them; prefers: of the models that it works with; report: shows the progress.
// run returns {nodes, answers, above, scores}. For the second of two models, `first` is the first one's; `above` are
// nodes for both, and scores() returns for each query the scores of the texts, or null if there are too few.
const TOOLS = [matrix, map, images, dense, sparse, colbert, rerank, tokens];

const views = new Map(); // by tool
let models = [];
let current = null;
const chosen = new Map(); // the model that the visitor selected, by tool
let latest = ""; // of them, for tools without one

const model = el("select", { onchange: () => { latest = model.value; chosen.set(current, latest); offerModels(); changed(); } });
const other = el("select", { onchange: changed });
const otherPlace = el("label", { class: "grow" }, "Compare with", other);
const overlong = el("select", { onchange: changed },
  el("option", { value: "" }, "server default"),
  el("option", { value: "true" }, "truncate"),
  el("option", { value: "false" }, "reject"));
const shared = el("div", { class: "row" },
  el("label", { class: "grow" }, "Model", model), otherPlace, el("label", {}, "Over-long texts", overlong));

/** follow: calls a function with the list of models, now and after each change. */
export async function startPlayground(follow) {
  for (const tool of TOOLS) views.set(tool, viewOf(tool));
  find("tabs").append(...[...views.values()].map((view) => view.tab));
  open(matrix);
  follow(setModels);
  try {
    const { json } = await get("console/calls");
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
  view.form.querySelector(".shared").replaceChildren(shared);
  find("tool").setAttribute("aria-labelledby", view.tab.id);
  find("tool").replaceChildren(view.form, view.result);
  offerModels();
  changed();
}

/** The models that the tool works with, preferred ones first. */
function capable(tool) {
  const found = models.filter((each) => tool.cannot(each) === null);
  const rank = (each) => (tool.prefers?.(each) === false ? 1 : 0);
  return found.sort((one, two) => rank(one) - rank(two));
}

function offerModels() {
  const found = capable(current);
  const names = found.map((each) => each.name);
  fill(model, names, []);
  const carried = found.find((each) => each.name === latest && current.prefers?.(each) !== false)?.name;
  const wanted = chosen.get(current) ?? carried;
  if (names.includes(wanted)) model.value = wanted;
  const compared = other.value;
  const others = names.filter((name) => name !== model.value);
  fill(other, others, [el("option", { value: "" }, "no other model")]);
  other.value = others.includes(compared) ? compared : "";
  otherPlace.hidden = others.length === 0 || current === dense; // single numbers of two models do not compare
  if (otherPlace.hidden) other.value = "";
}

function fill(select, names, first) {
  select.replaceChildren(...first, ...names.map((name) => el("option", { value: name }, name)));
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
  for (const [tool, view] of views) view.tab.hidden = models.length > 0 && capable(tool).length === 0;
  if (views.get(current).tab.hidden) return open(TOOLS.find((tool) => !views.get(tool).tab.hidden));
  offerModels();
  changed();
}

function context(name = model.value) {
  const asked = models.find((each) => each.name === name);
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
  find("playground").classList.toggle("compared", other.value !== "");
  showCode(asked.model ? current.calls(asked) : [], current.note?.());
}

/** The reason why a tool is unavailable, null if it is available. */
function reasonOf(tool, asked) {
  if (asked === undefined) return "No model is available yet.";
  if (asked.state === "failed") return `${asked.name} failed to load: ${asked.failure ?? "the log says why."}`;
  return tool.cannot(asked);
}

async function answer(tool) {
  const view = views.get(tool);
  view.run.disabled = true;
  view.status.classList.remove("bad");
  view.status.textContent = "running";
  const report = (words) => (view.status.textContent = words);
  const names = [model.value, other.value].filter(Boolean);
  try {
    const results = [];
    for (const name of names) results.push(await tool.run(context(name), report, results[0])); // one at a time, so that times compare
    const reports = results.map(({ answers }) => answers.map(reportOf).join("; "));
    report(names.length > 1 ? "" : reports[0]);
    view.result.replaceChildren(...(results[0].above ?? []),
      ...(names.length > 1 ? compared(names, results, reports) : results[0].nodes));
  } catch (error) {
    view.status.classList.add("bad");
    view.status.textContent = error.message;
    view.result.replaceChildren();
  }
  view.run.disabled = view.reason !== null;
}

function compared(names, results, reports) {
  const scores = results.map((result) => result.scores?.() ?? null);
  return [
    scores.every(Boolean) && el("p", { class: "agreement", role: "status" }, agreementOf(...scores)),
    el("div", { class: "sides" }, results.map(({ nodes }, at) => el("section", { class: "side", "aria-label": names[at] },
      el("h3", {}, names[at]), el("p", { class: "note" }, reports[at]), nodes))),
  ].filter(Boolean);
}

/** The tokens read and the time. */
function reportOf({ json, lengths, name }) {
  const parts = [];
  if (lengths.seen !== null) parts.push(tokensOf(lengths));
  if (json?.timings) {
    const { total_ms: total, queue_ms: queue, inference_ms: inference } = json.timings;
    const steps = inference === 0 ? " (cached)" : ` (queue ${milliseconds(queue)}, model ${milliseconds(inference)})`;
    parts.push(milliseconds(total) + (queue === undefined ? "" : steps));
  }
  return `${name ? `${name}: ` : ""}${parts.join(", ")}`;
}

function tokensOf({ seen, kept, cut, cutInputs, queryCut }) {
  if (cut === 0 && !queryCut) return plural(seen, "token");
  const which = cut > cutInputs.length && cut > 1 ? [plural(cut, "text")] : [...(queryCut ? ["the query"] : []), ...cutInputs.map((index) => `text ${index + 1}`)];
  return `${plural(seen, "token")}, ${kept.toLocaleString("en")} used; truncated: ${which.join(", ") || plural(cut, "text")}`;
}
