// Any route of any API: an editable example, and the unchanged response.

import { call } from "./api.js";
import { el } from "./dom.js";

const SHOWN = 20000; // characters of a response

let calls = [];
const choice = el("select", { onchange: choose });
const body = el("textarea", { rows: "8", class: "json", spellcheck: "false" });
const label = el("label", {}, "Body", body);
const summary = el("p", { class: "note" });

function chosen() {
  return calls[Number(choice.value)] ?? null;
}

function choose() {
  const entry = chosen();
  label.hidden = entry === null || entry.body === null;
  body.value = label.hidden ? "" : JSON.stringify(entry.body, null, 2);
  summary.textContent = entry?.summary ?? "";
}

export const any = {
  id: "any",
  title: "Any call",
  about: "Every route of every API of this server, with an editable example.",
  fields: [el("label", {}, "Call", choice), summary, label],
  cannot: () => null,
  setCalls(known) {
    calls = known;
    const titles = [...new Set(known.map((entry) => entry.title))];
    choice.replaceChildren(...titles.map((title) => el("optgroup", { label: title }, known.flatMap((entry, at) =>
      (entry.title === title ? [el("option", { value: at }, `${entry.method} ${entry.path}`)] : [])))));
    choose();
  },
  call() {
    const entry = chosen();
    if (entry === null) return null;
    try {
      return { method: entry.method, path: entry.path, body: label.hidden ? undefined : JSON.parse(body.value) };
    } catch {
      return null; // incomplete input
    }
  },
  async run() {
    const entry = chosen();
    const answer = await call(entry.method, entry.path, label.hidden ? undefined : body.value);
    const text = answer.json === null ? answer.text : withShortLists(JSON.stringify(answer.json, null, 2));
    const shown = text.length > SHOWN ? `${text.slice(0, SHOWN)}\n... ${text.length - SHOWN} more characters` : text;
    const place = { class: "answer", tabindex: "0", role: "region", "aria-label": "Answer" };
    return { nodes: [el("pre", place, shown)], answers: [{ ...answer, json: null }] };
  },
};

/** Lists of numbers on one line each. A string of JSON has no line feed, so no string is changed. */
const withShortLists = (json) => json.replace(/\[\n[-\d.e+,\s]+\]/g, (list) => list.replace(/\s+/g, " ").replace("[ ", "[").replace(" ]", "]"));
