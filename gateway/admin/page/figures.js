// Numbers for people.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function number(count) {
  return Math.round(count).toLocaleString("en");
}

/** A rate that may be small. */
export function rate(value) {
  return value >= 10 ? number(value) : value.toFixed(1);
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)}%` : "–";
}

export function ago(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}
