// Formats numbers. A missing number is a dash.

const NONE = "\u2013";

/** With at most `digits` decimals, and commas between thousands. */
const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

export function count(value) {
  if (value == null) return NONE;
  if (value >= 1e6) return `${number(value / 1e6, 1)} M`;
  return value >= 1e4 ? `${number(value / 1e3, 1)} k` : number(value, value >= 100 ? 0 : 1);
}

export function milliseconds(value) {
  if (value == null) return NONE;
  if (value >= 1e3) return `${number(value / 1e3, value >= 1e4 ? 1 : 2)} s`;
  return `${number(value, value >= 10 ? 0 : 1)} ms`;
}

export function bytes(value) {
  if (value == null) return NONE;
  if (value >= 1e9) return `${number(value / 1e9, 2)} GB`;
  return value >= 1e6 ? `${number(value / 1e6, 0)} MB` : `${number(value / 1e3, 0)} kB`;
}

export function percent(value) {
  return value == null ? NONE : `${Math.round(value * 100)} %`;
}

export function decimal(value, digits = 4) {
  return value.toFixed(digits).replace("-", "\u2212");
}

export function plural(many, one) {
  return `${many.toLocaleString("en")} ${one}${many === 1 ? "" : "s"}`;
}

/** The name of an error's class as words: "QueueTimedOut" is "Queue timed out". */
export function errorWords(name) {
  return name.replace(/([a-z])([A-Z])/g, (_, one, other) => `${one} ${other.toLowerCase()}`);
}

/** A time of day, of seconds since 1970. */
export function clockTime(unixS, withSeconds = false) {
  const parts = { hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}), hour12: false };
  return new Date(unixS * 1000).toLocaleTimeString("en-GB", parts);
}

export function duration(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = Math.max(0, units.findIndex(([size]) => seconds >= size));
  const shown = seconds < 1 ? [[1, "s"]] : units.slice(first, first + 2);
  let rest = Math.max(0, seconds);
  return shown.map(([size, unit]) => {
    const many = Math.floor(rest / size);
    rest -= many * size;
    return `${many} ${unit}`;
  }).join(" ");
}
