// A tool's request as curl, Python and JavaScript, in each API that supports it. The server provides the list.

import { key, urlOf, whenAdmitted } from "./api.js";
import { el, find } from "./dom.js";

const SHORT = 72; // characters of a body that stays on one line

const LANGUAGES = { curl: asCurl, Python: asPython, JavaScript: asJavaScript };
const OWN = "vectord, as here";
const CHOSEN = "as chosen";
const NAMELESS = "This API has no model field: the first suitable model answers.";

let calls = [];
let asked = null; // the request of the open tool
let contextOf = () => ({});

/** known: the entries of /console/calls; context: returns the selected model. */
export function startCode(known, context) {
  calls = known;
  contextOf = context;
  find("language").append(...Object.keys(LANGUAGES).map((name) => el("option", {}, name)));
  find("language").addEventListener("change", write);
  find("dialect").addEventListener("change", write);
  find("copy").addEventListener("click", copy);
  whenAdmitted(write);
}

/** call: {method, path, body}, and {operation, outputs, texts, query} if other APIs have an equivalent. */
export function showCode(call) {
  asked = call;
  const own = call?.operation ? OWN : CHOSEN;
  const names = call === null ? [] : [own, ...new Set(fitting(call).map(labelOf))];
  const select = find("dialect");
  const chosen = select.value;
  if (names.join() !== [...select.options].map((option) => option.value).join()) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
  select.disabled = names.length < 2;
  write();
}

function write() {
  const place = find("code").firstElementChild;
  if (asked === null || !find("language").value) return place.replaceChildren();
  const entry = fitting(asked).find((each) => labelOf(each) === find("dialect").value);
  const call = entry === undefined ? asked : filled(entry, asked, contextOf().model?.name);
  find("code-note").textContent = entry && !entry.takes_model ? NAMELESS : "";
  return place.replaceChildren(LANGUAGES[find("language").value](call));
}

async function copy() {
  const note = find("code-note");
  try {
    await navigator.clipboard.writeText(find("code").textContent);
    note.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(find("code"));
    note.textContent = "The browser does not allow copying; the code is selected.";
  }
}

const labelOf = (entry) => `${entry.title}: ${entry.path}`;

/** Equivalent requests of other APIs: the same operation and outputs, and a place for all texts. */
function fitting(call) {
  if (!call.operation) return [];
  return calls.filter((entry) => entry.dialect !== "vectord" && entry.operation === call.operation &&
    call.outputs.every((kind) => entry.outputs.includes(kind)) &&
    (call.texts.length === 1 || Array.isArray(valueAt(entry.body, entry.places.texts))));
}

function filled(entry, call, model) {
  const body = structuredClone(entry.body);
  put(body, entry.places.texts, (old) => (Array.isArray(old) ? call.texts.map((text) => like(old[0], text)) : call.texts[0]));
  if (entry.places.query) put(body, entry.places.query, () => call.query);
  if (entry.takes_model && model) body.model = model;
  return { method: entry.method, path: entry.path, body };
}

const like = (old, text) => (typeof old === "object" ? { text } : text);
const valueAt = (body, keys) => keys.reduce((value, name) => value[name], body);

function put(body, keys, change) {
  const above = valueAt(body, keys.slice(0, -1));
  above[keys.at(-1)] = change(above[keys.at(-1)]);
}

// --- languages -----------------------------------------------------------------------------------------------

function asCurl({ method, path, body }) {
  const lines = [`curl ${quoted(urlOf(path).href)}`];
  if (key()) lines.push(`-H "authorization: Bearer $VECTORD_API_KEY"`);
  if (body !== undefined) lines.push("-H 'content-type: application/json'", `-d ${quoted(json(body))}`);
  else if (method !== "GET") lines.push(`-X ${method}`);
  return lines.join(" \\\n  ");
}

const quoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

function asPython({ method, path, body }) {
  const lines = [`    ${JSON.stringify(urlOf(path).href)},`];
  if (key()) lines.push(`    headers={"authorization": f"Bearer {os.environ['VECTORD_API_KEY']}"},`);
  if (body !== undefined) lines.push(`    json=${indented(python(body), "    ")},`);
  return [
    ...(key() ? ["import os", ""] : []), "import httpx", "",
    `response = httpx.${method.toLowerCase()}(`, ...lines, "    timeout=60,", ")", "response.raise_for_status()", "print(response.json())",
  ].join("\n");
}

/** A value in Python's notation, on several lines if it is long. */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value) ? value.map(python)
    : Object.entries(value).map(([name, part]) => `${JSON.stringify(name)}: ${python(part)}`);
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length <= SHORT && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `    ${indented(part, "    ")},`).join("\n")}\n${close}`;
}

function asJavaScript({ method, path, body }) {
  const headers = [
    ...(body === undefined ? [] : [`"content-type": "application/json"`]),
    ...(key() ? ["authorization: `Bearer ${process.env.VECTORD_API_KEY}`"] : []),
  ];
  const options = [
    ...(method === "GET" ? [] : [`  method: "${method}",`]),
    ...(headers.length ? [`  headers: { ${headers.join(", ")} },`] : []),
    ...(body === undefined ? [] : [`  body: JSON.stringify(${indented(json(body), "  ")}),`]),
  ];
  const given = options.length ? `, {\n${options.join("\n")}\n}` : "";
  return [
    `const response = await fetch(${JSON.stringify(urlOf(path).href)}${given});`,
    "if (!response.ok) throw new Error(await response.text());",
    "console.log(await response.json());",
  ].join("\n");
}

function json(value) {
  const line = JSON.stringify(value);
  return line.length <= SHORT ? line : JSON.stringify(value, null, 2);
}

const indented = (text, by) => text.replaceAll("\n", `\n${by}`);
