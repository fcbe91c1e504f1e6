// Requests to the server of this page, with the user's key. The key stays in this tab's memory.

// This file is ROOT/console/api.js, where ROOT may include a prefix, or the prefix of one API.
const ROOT = new URL(new URL("..", import.meta.url).href.replace(/dialects\/[^/]+\/$/, ""));
const KEPT_AS = "vectord-key";

const refused = new Set(); // called when a request needs a key
const admitted = new Set(); // called when the key changes

export class ApiError extends Error {
  constructor(status, message, retryAfterS = null) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

export const urlOf = (path) => new URL(path.replace(/^\//, ""), ROOT);
export const key = () => sessionStorage.getItem(KEPT_AS);
export const whenRefused = (listener) => refused.add(listener);
export const whenAdmitted = (listener) => admitted.add(listener);

export function setKey(value) {
  if (value) sessionStorage.setItem(KEPT_AS, value);
  else sessionStorage.removeItem(KEPT_AS);
  for (const listener of admitted) listener();
}

/** Calls `ask` now, every `periodMs` while the page is visible, and when the key changes; `fail` with its errors.
 *  Pauses after 401 and 404 until the page is shown again or the key changes. Returns a function that asks at once. */
export function poll(periodMs, ask, fail) {
  let timer = null;
  const run = async () => {
    clearTimeout(timer);
    if (document.visibilityState !== "visible") return;
    let again = true;
    try {
      await ask();
    } catch (error) {
      fail(error);
      again = error.status !== 401 && error.status !== 404;
    }
    clearTimeout(timer);
    if (again) timer = setTimeout(run, periodMs);
  };
  document.addEventListener("visibilitychange", run);
  whenAdmitted(run);
  run();
  return run;
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, JSON.stringify(body));

/** {json, text, lengths} of a response. Throws ApiError, with status 0 if there was no response. */
export async function call(method, path, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  const sent = key();
  if (sent) headers.authorization = `Bearer ${sent}`;
  let response;
  try {
    response = await fetch(urlOf(path), { method, headers, body, cache: "no-store" });
  } catch {
    throw new ApiError(0, "The server does not answer.");
  }
  const text = await response.text();
  const json = parsed(text);
  if (response.status === 401 && sent === key()) for (const listener of refused) listener();
  if (!response.ok) {
    const waits = Number(response.headers.get("retry-after")) || null;
    throw new ApiError(response.status, messageOf(json) ?? `The server answered ${response.status}.`, waits);
  }
  return { json, text, lengths: lengthsOf(response.headers) };
}

/** Several answers as one, for a report: the sums of their lengths, and the time since `began`. */
export function totalOf(answers, began) {
  const sum = (name) => answers.reduce((total, { lengths }) => total + (lengths[name] ?? 0), 0);
  const lengths = { seen: sum("seen"), kept: sum("kept"), cut: sum("cut"), cutInputs: [], queryCut: false };
  return { json: { timings: { total_ms: performance.now() - began } }, lengths };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function messageOf(json) {
  const message = json?.error?.message ?? json?.message ?? json?.error;
  return typeof message === "string" ? message : null;
}

function lengthsOf(headers) {
  const number = (name) => (headers.has(name) ? Number(headers.get(name)) : null);
  return {
    seen: number("x-vectord-tokens-seen"),
    kept: number("x-vectord-tokens-kept"),
    cut: number("x-vectord-truncated") ?? 0,
    cutInputs: (headers.get("x-vectord-truncated-inputs") ?? "").split(",").filter(Boolean).map(Number),
    queryCut: headers.get("x-vectord-query-truncated") === "true",
  };
}
