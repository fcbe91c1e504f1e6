// Tokens of a text: offsets and id.

import { post } from "./api.js";
import { el, scrolling, table } from "./dom.js";
import { plural } from "./format.js";
import { shaded, wordsOf } from "./words.js";

const text = el("textarea", { rows: "3", maxlength: "100000" }, "Na\u00efve tokenizers disagree about caf\u00e9s.");
const specials = el("input", { type: "checkbox", checked: true });
const body = ({ model }) => ({ model: model.name, inputs: [text.value], add_special_tokens: specials.checked });

export const tokens = {
  id: "tokens",
  title: "Tokenize",
  about: "The tokens of a text, including those beyond the model's limit. Offsets are in bytes.",
  fields: [el("label", {}, "Text", text), el("label", { class: "inline" }, specials, "with special tokens")],
  cannot: () => null,
  calls: (asked) => [{ path: "/vectord/tokenize", body: body(asked) }],
  async run(asked) {
    const answer = await post("vectord/tokenize", body(asked));
    const found = answer.json.data[0].tokens;
    const limit = asked.model.max_input_tokens;
    const over = found.length > limit && `${plural(found.length, "token")}; the limit of the model is ${limit.toLocaleString("en")}.`;
    const rows = found.map((token, at) => [at + 1, token.text, token.id, token.start ?? "\u2013", token.stop ?? "\u2013"]);
    const number = "right number";
    return {
      nodes: [
        ...(over ? [el("p", { class: "note bad" }, over)] : []),
        wordsOf(text.value, found, asked.model, paint),
        el("details", {}, el("summary", {}, "As a table"), scrolling("Tokens",
          table([["number", number], ["token", ""], ["id", number], ["start", number], ["stop", number]], rows))),
      ],
      answers: [answer],
    };
  },
};

function paint(token, surface, index) {
  if (token.special) return el("span", { class: "special" }, surface);
  const place = `token ${index + 1}, id ${token.id}, bytes ${token.start} to ${token.stop}`;
  return shaded(el("span", { class: "word", title: place }, surface, el("sub", {}, token.id)), index % 2 ? 0.45 : 0.15);
}
