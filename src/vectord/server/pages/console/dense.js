// The dense vector of a text.

import { post } from "./api.js";
import { el } from "./dom.js";
import { decimal, plural } from "./format.js";

const text = el("textarea", { rows: "3", maxlength: "100000" }, "The bridge was closed after two days of rain.");
const body = ({ reading }) => ({ ...reading, inputs: [text.value] });

export const dense = {
  id: "dense",
  title: "Dense",
  about: "The vector of a text. Texts with similar meanings have vectors in similar directions.",
  fields: el("label", {}, "Text", text),
  cannot: (model) => (model.outputs.includes("dense") ? null : `${model.name} makes no dense vectors.`),
  calls: (asked) => [{ path: "/vectord/embed", body: body(asked) }],
  async run(asked) {
    const answer = await post("vectord/embed", body(asked));
    const numbers = answer.json.data[0].dense;
    const range = `from ${decimal(Math.min(...numbers))} to ${decimal(Math.max(...numbers))}`;
    return {
      nodes: [
        el("p", { class: "note" }, `${plural(numbers.length, "number")} ${range}; length ${decimal(Math.hypot(...numbers))}`),
        el("pre", { tabindex: "0", class: "answer", role: "region", "aria-label": "All numbers" }, numbers.join(", ")),
      ],
      answers: [answer],
    };
  },
};
