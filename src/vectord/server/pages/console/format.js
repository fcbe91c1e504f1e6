// Formats numbers. A missing number is a dash.

const NONE = "\u2013";

export function count(value) {
  if (value == null) return NONE;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function milliseconds(value) {
  if (value == null) return NONE;
  if (value >= 1e3) return `${(value / 1e3).toFixed(value >= 1e4 ? 1 : 2)} s`;
  return `${value >= 100 ? Math.round(value) : value.toFixed(1)} ms`;
}

export function bytes(value) {
  if (value == null) return NONE;
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} GB`;
  return value >= 1e6 ? `${Math.round(value / 1e6)} MB` : `${Math.round(value / 1e3)} kB`;
}

export function percent(value) {
  return value == null ? NONE : `${Math.round(value * 100)} %`;
}

export function decimal(value, digits = 4) {
  return value.toFixed(digits).replace("-", "\u2212");
}

export function plural(number, one) {
  return `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
}
