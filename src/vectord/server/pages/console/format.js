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
