// A text with its tokens marked. Offsets are bytes of the text including its prompt, as the server returns them.

import { el } from "./dom.js";

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Nodes: unchanged text between tokens, and the result of `paint(token, surface, index)` for each token. */
export function wordsOf(text, tokens, model, paint) {
  const bytes = encoder.encode(promptOf(text, tokens, model) + text);
  const nodes = [];
  let done = 0;
  for (const [index, token] of tokens.entries()) {
    if (token.start === null) {
      nodes.push(" ", paint(token, token.text, index), " ");
      continue;
    }
    const start = Math.max(done, token.start);
    if (start > done) nodes.push(decoder.decode(bytes.subarray(done, start)));
    nodes.push(paint(token, surfaceOf(bytes, start, token), index));
    done = Math.max(done, token.stop);
  }
  nodes.push(decoder.decode(bytes.subarray(done)));
  return el("p", { class: "words" }, nodes);
}

/** The bytes of a token; the token's text if they are only part of a character. */
function surfaceOf(bytes, start, token) {
  const surface = decoder.decode(bytes.subarray(start, token.stop));
  return surface === "" || surface.includes("\ufffd") ? token.text : surface;
}

/** The model's default prompt before the text. No response contains it; the last offset shows its length. */
function promptOf(text, tokens, model) {
  const length = encoder.encode(text).length;
  const last = Math.max(0, ...tokens.map((token) => token.stop ?? 0));
  if (last <= length) return "";
  const fits = (prompt) => last <= encoder.encode(prompt).length + length;
  return Object.values(model.prompts).filter(fits).sort((one, other) => one.length - other.length)[0] ?? "";
}

/** The background for a share from 0 to 1, light enough for readable text in both themes. */
export function shaded(node, share) {
  const part = Math.round(45 * Math.min(1, Math.max(0, share)));
  node.style.background = part === 0 ? "" : `color-mix(in srgb, var(--accent) ${part}%, var(--panel))`;
  return node;
}
