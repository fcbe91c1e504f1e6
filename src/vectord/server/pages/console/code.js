// A tool's requests as curl, Python and JavaScript, in each API that has equal ones. The server provides the list.

import { key, urlOf, whenAdmitted } from "./api.js";
import { el, find } from "./dom.js";

const SHORT = 72; // characters of a body that stays on one line

const LANGUAGES = { curl: asCurl, Python: asPython, JavaScript: asJavaScript };
const OWN = "vectord, as here";
const NAMELESS = "This API has no model field: the first suitable model answers.";
const TRUNCATES = "This API truncates over-long texts, unless the server's setting forbids it.";

let entries = []; // of /console/calls
let shown = []; // the requests of the open tool
let note = ""; // about them
let contextOf = () => ({});
let others = new Map(); // the same requests in other APIs, by label

/** known: the answer of /console/calls; context: returns the selected model. */
export function startCode(known, context) {
  entries = known;
  contextOf = context;
  find("language").append(...Object.keys(LANGUAGES).map((name) => el("option", {}, name)));
  find("language").addEventListener("change", write);
  find("dialect").addEventListener("change", write);
  find("copy").addEventListener("click", () => copy(find("code"), find("code-note")));
  whenAdmitted(write);
}

/** A string in a body that stands for the content of a file as base64, which the shown code reads. */
export const contentOf = (name) => `\0${name}`;

const CONTENT = /"\\u0000((?:[^"\\]|\\.)*)"/g; // such a string in JSON
const readsFile = (body) => JSON.stringify(body).search(CONTENT) >= 0;

/** calls: [{path, body}], of POST requests; about: a sentence about them. */
export function showCode(calls, about = "") {
  shown = calls;
  note = about;
  const { model } = contextOf();
  others = new Map(entries
    .map((entry) => [entry.label, { entry, calls: calls.map((call) => inApi(entry, call, model)) }])
    .filter(([, { calls: filled }]) => filled.length && !filled.includes(null)));
  const names = [OWN, ...others.keys()];
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
  if (shown.length === 0 || !find("language").value) return place.replaceChildren();
  const other = others.get(find("dialect").value);
  const truncates = other?.entry.truncates && shown[0].body.truncate === undefined;
  find("code-note").textContent = [note, other?.entry.takes_model === false && NAMELESS, truncates && TRUNCATES].filter(Boolean).join(" ");
  place.replaceChildren(LANGUAGES[find("language").value](other?.calls ?? shown));
}

export async function copy(code, status) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    status.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(code);
    status.textContent = "The browser does not allow copying; the code is selected.";
  }
}

/** An equal request in another API; null if it has none. */
function inApi(form, call, model) {
  const wanted = neutral(call);
  if (wanted === null || form.operation !== wanted.operation || form.outputs.join() !== wanted.outputs.join()) return null;
  const readsKind = wanted.outputs.includes("colbert") || Object.keys(model?.prompts ?? {}).length > 0;
  const truncate = wanted.truncate === null ? {} : new Map(form.truncate).get(wanted.truncate);
  const kind = readsKind ? new Map(form.kind).get(wanted.kind) : {};
  const scores = form.raw === wanted.raw || !model.reranks; // of vectors: no API changes them
  const takesSeveral = Array.isArray(valueAt(form.body, form.places.texts));
  if (!truncate || !kind || !scores || form.specials !== wanted.specials || (!takesSeveral && wanted.texts.length !== 1)) return null;
  const body = { ...(form.takes_model && { model: model.name }), ...structuredClone(form.body), ...truncate, ...kind };
  if (form.takes_model) body.model = model.name;
  put(body, form.places.texts, (old) => (takesSeveral ? wanted.texts.map((text) => like(old[0], text)) : wanted.texts[0]));
  if (form.places.query) put(body, form.places.query, () => wanted.query);
  return { path: form.path, body };
}

/** A request of this page in words that other APIs share; null if they have no equal one. */
function neutral({ path, body }) {
  const { truncate = null, kind = null, add_special_tokens: specials = true } = body;
  const shared = { truncate, kind, specials, outputs: [], raw: null };
  switch (path) {
    case "/vectord/embed": return readsFile(body) ? null
      : { ...shared, operation: "embed", outputs: body.outputs ?? ["dense"], texts: body.inputs };
    case "/vectord/tokenize": return { ...shared, operation: "tokenize", texts: body.inputs };
    case "/vectord/rerank": return body.method ? null
      : { ...shared, operation: "rerank", texts: body.passages, query: body.query, raw: body.scores ? false : null };
    default: return null;
  }
}

const like = (old, text) => (typeof old === "object" ? { text } : text);
const valueAt = (body, keys) => keys.reduce((value, name) => value[name], body);

function put(body, keys, change) {
  const above = valueAt(body, keys.slice(0, -1));
  above[keys.at(-1)] = change(above[keys.at(-1)]);
}

// --- languages -----------------------------------------------------------------------------------------------

/** The newcomer's call, on one line. */
export const firstCall = () => asCurl([{ path: "/v1/embeddings", body: { input: "That is a happy person" } }]).replaceAll(" \\\n  ", " ");

function asCurl(calls) {
  return calls.map(({ path, body }) => [
    `curl ${quoted(urlOf(path).href)}`,
    ...(key() ? [`-H "authorization: Bearer $VECTORD_API_KEY"`] : []),
    "-H 'content-type: application/json'",
    dataOf(json(body)),
  ].join(" \\\n  ")).join("\n\n");
}

/** curl's option for a body. The contents of files come through a pipe, because an argument may not be so long. */
function dataOf(text) {
  const [first, ...others] = text.split(CONTENT);
  if (others.length === 0) return `-d ${quoted(text)}`;
  const plain = (part) => part.replace(/[\\$`]/g, String.raw`\$&`); // the shell expands the rest
  const parts = others.map((part, at) => (at % 2 ? plain(part) : `"$(base64 < ${quoted(JSON.parse(`"${part}"`))} | tr -d '\\n')"`));
  return `-d @- <<END\n${plain(first)}${parts.join("")}\nEND`;
}

const quoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

function asPython(calls) {
  const sent = calls.flatMap(({ path, body }) => [
    "", "response = httpx.post(",
    `    ${JSON.stringify(urlOf(path).href)},`,
    ...(key() ? [`    headers={"authorization": f"Bearer {os.environ['VECTORD_API_KEY']}"},`] : []),
    `    json=${indented(python(body), "    ").replace(CONTENT, 'base64.b64encode(open("$1", "rb").read()).decode()')},`,
    "    timeout=60,", ")", "response.raise_for_status()", "print(response.json())",
  ]);
  const used = [...(readsFile(calls) ? ["import base64"] : []), ...(key() ? ["import os"] : [])];
  return [...used, ...(used.length ? [""] : []), "import httpx", ...sent].join("\n");
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

function asJavaScript(calls) {
  const headers = [`"content-type": "application/json"`, ...(key() ? ["authorization: `Bearer ${process.env.VECTORD_API_KEY}`"] : [])];
  const sent = calls.map(({ path, body }, at) => [
    `${at === 0 ? "let " : ""}response = await fetch(${JSON.stringify(urlOf(path).href)}, {`,
    `  method: "POST",`,
    `  headers: { ${headers.join(", ")} },`,
    `  body: JSON.stringify(${indented(json(body), "  ").replace(CONTENT, 'readFileSync("$1", "base64")')}),`,
    "});",
    "if (!response.ok) throw new Error(await response.text());",
    "console.log(await response.json());",
  ].join("\n")).join("\n\n");
  return readsFile(calls) ? `import { readFileSync } from "node:fs";\n\n${sent}` : sent;
}

function json(value) {
  const line = JSON.stringify(value);
  return line.length <= SHORT ? line : JSON.stringify(value, null, 2);
}

const indented = (text, by) => text.replaceAll("\n", `\n${by}`);
