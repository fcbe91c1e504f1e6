// A place for files that a visitor drops, and the texts of such a file: lines, CSV, JSON or JSON lines.

import { el } from "./dom.js";

const MAX_BYTES = 20e6;
const PREFERRED = /^(text|content|body|passage|document|sentence|abstract|description|title)$/i; // names of a text's field

/** A field for files. props: attributes of its input; take: receives the files; children: nodes after the input. */
export function dropZone(words, props, take, ...children) {
  const picker = el("input", { type: "file", ...props, onchange: () => take([...picker.files]), onclick: () => (picker.value = "") });
  const zone = el("div", { class: "drop" }, el("label", {}, words, picker), children);
  for (const name of ["dragover", "drop"]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", name === "dragover");
      if (name === "drop") take([...event.dataTransfer.files]);
    });
  }
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  return zone;
}

/** The texts of a file, at most `most`. Throws an Error with the reason. */
export async function textsOf(file, most) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} has more than ${MAX_BYTES / 1e6} MB.`);
  const content = (await file.text()).replace(/^\ufeff/, "");
  if (content.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  const ending = file.name.toLowerCase().split(".").pop();
  const found = ending === "csv" || ending === "tsv" ? ofRows(rowsOf(content, ending === "tsv" ? "\t" : ","))
    : ending === "json" ? ofRecords(parsed(content, file.name))
      : ending === "jsonl" || ending === "ndjson" ? ofRecords(linesOf(content).map((line) => parsed(line, file.name)))
        : linesOf(content);
  const texts = found.map((text) => text.trim()).filter(Boolean).slice(0, most);
  if (texts.length === 0) throw new Error(`${file.name} contains no texts.`);
  return texts;
}

export const linesOf = (content) => content.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);

function parsed(content, name) {
  try {
    return JSON.parse(content);
  } catch {
    throw new Error(`${name} is not valid JSON.`);
  }
}

/** The texts of a list of strings, lists or objects. */
function ofRecords(records) {
  const list = Array.isArray(records) ? records : Object.values(records ?? {}).find(Array.isArray) ?? [];
  if (list.every((item) => typeof item === "string")) return list;
  const objects = list.filter((item) => item !== null && typeof item === "object");
  const names = [...new Set(objects.flatMap((item) => Object.keys(item)))];
  return ofRows([names, ...objects.map((item) => names.map((name) => (typeof item[name] === "string" ? item[name] : "")))]);
}

/** The column of texts: the one with a usual name, else the one with the longest texts. */
function ofRows([head = [], ...rows]) {
  const lengths = head.map((_, at) => rows.reduce((sum, row) => sum + (row[at] ?? "").length, 0));
  const usual = head.findIndex((name) => PREFERRED.test(name.trim()));
  const column = usual >= 0 ? usual : lengths.indexOf(Math.max(...lengths));
  return rows.map((row) => row[column] ?? "");
}

/** The cells of CSV, with quotes as RFC 4180 has them. */
function rowsOf(content, separator) {
  const rows = [[]];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < content.length; at++) {
    const sign = content[at];
    if (quoted && sign === '"' && content[at + 1] === '"') cell += content[++at];
    else if (sign === '"' && (quoted || cell === "")) quoted = !quoted;
    else if (!quoted && (sign === separator || sign === "\n")) {
      rows.at(-1).push(cell.replace(/\r$/, ""));
      cell = "";
      if (sign === "\n") rows.push([]);
    } else cell += sign;
  }
  rows.at(-1).push(cell);
  return rows.filter((row) => row.some((each) => each !== ""));
}
