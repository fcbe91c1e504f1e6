// Creates elements. Text from clients, models and the server becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

/** An element. props: attributes, where `on...` adds a listener and false omits; children: nodes or text. */
export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false).map(asNode));
  return node;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** A table. columns: [name, class]; rows: lists of cells, the first is the row's header. */
export function table(columns, rows, props = {}) {
  return el("table", props, ...tableParts(columns, rows));
}

export function tableParts(columns, rows) {
  const head = columns.map(([name, cls]) => el("th", { scope: "col", class: cls }, name));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, at) => {
    const cls = columns[at]?.[1];
    return at === 0 ? el("th", { scope: "row", class: cls }, cell) : el("td", { class: cls, "data-name": columns[at]?.[0] }, cell);
  })));
  return [el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)];
}

/** A container that scrolls wide content, also by keyboard. */
export function scrolling(label, content) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, content);
}
