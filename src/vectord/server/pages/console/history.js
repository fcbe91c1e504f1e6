// What happened when: steps of one second while the page is open, and the server's own steps of the last hour.
//
// A step has the differences of the server's sums, and its sizes at the end. observability/metrics.py makes the same.

const SECONDS_KEPT = 130; // one-second steps, for the range of two minutes
const STEPS_KEPT = 366;
const SUMS = ["requests", "errors", "texts", "tokens", "run_tokens", "forwards", "forward_fill", "waits", "waited_s"];
const SHORTEST_S = 2; // of the unfinished step that is drawn: rates of less are noise

export class History {
  constructor() {
    this.seconds = [];
    this.steps = [];
    this.bounds = [];
    this.now = null; // the latest figures
    this.last = null; // the figures at the end of the last long step
    this.stepS = 10;
  }

  /** The server's answer for console/history. Returns this. */
  reset({ step_s: stepS, steps, last }) {
    Object.assign(this, { seconds: [], steps, last, stepS, now: null });
    return this;
  }

  /** Adds figures of console/live. Returns false if they are not a continuation: the server has been restarted. */
  add(figures) {
    const before = this.now ?? this.last;
    if (before !== null && (figures.clock_s < before.clock_s || figures.requests < before.requests)) return false;
    this.bounds = figures.latency.bounds_s;
    if (this.now !== null && figures.clock_s > this.now.clock_s) {
      this.seconds.push(stepBetween(this.now, figures));
      this.seconds.splice(0, this.seconds.length - SECONDS_KEPT);
    }
    this.last ??= figures;
    if (figures.clock_s - this.last.clock_s >= this.stepS) {
      this.steps.push(stepBetween(this.last, figures));
      this.steps.splice(0, this.steps.length - STEPS_KEPT);
      this.last = figures;
    }
    this.now = figures;
    return true;
  }

  /** The step of the last second; null if there is none yet. */
  get latest() {
    return this.seconds.at(-1) ?? null;
  }

  /** The end of the range: the server's time. */
  get endS() {
    return this.now?.unix_s ?? Date.now() / 1000;
  }

  /** The steps of the last `rangeS` seconds, the oldest first. */
  within(rangeS) {
    const fine = rangeS <= SECONDS_KEPT;
    const since = fine && this.seconds.length ? beginOf(this.seconds[0]) : Infinity;
    const long = this.steps.filter((step) => step.ended_unix_s <= since + 1);
    const unfinished = this.now !== null && this.now.clock_s - this.last.clock_s >= SHORTEST_S;
    const recent = fine ? this.seconds : unfinished ? [stepBetween(this.last, this.now)] : [];
    return [...long, ...recent].filter((step) => step.ended_unix_s > this.endS - rangeS);
  }
}

const beginOf = (step) => step.ended_unix_s - step.seconds;

function stepBetween(old, now) {
  return {
    ended_unix_s: now.unix_s,
    seconds: now.clock_s - old.clock_s,
    ...Object.fromEntries(SUMS.map((name) => [name, now[name] - old[name]])),
    counts: difference(now.latency.counts, old.latency.counts),
    cache_hits: now.cache.hits - old.cache.hits,
    cache_misses: now.cache.misses - old.cache.misses,
    wait_s: now.wait_s,
    saturation: now.saturation,
    memory: now.memory,
    devices: Object.fromEntries(Object.entries(now.devices).map(([name, device]) => [name, device.used_bytes])),
    errors_by: Object.fromEntries(Object.entries(now.errors_by)
      .map(([name, number]) => [name, number - (old.errors_by[name] ?? 0)]).filter(([, number]) => number > 0)),
    models: Object.fromEntries(Object.entries(now.models)
      .map(([name, sums]) => [name, difference(sums, old.models[name] ?? [])]).filter(([, sums]) => sums.some(Boolean))),
  };
}

const difference = (now, old) => now.map((value, at) => value - (old[at] ?? 0));

/** The sums of one model in several steps: {requests, errors, tokens, texts, truncated, counts}. */
export function modelSums(steps, name) {
  const found = steps.map((step) => step.models[name]).filter(Boolean);
  const [requests, errors, tokens, texts, truncated, ...counts] = summed(found, 5);
  return { requests, errors, tokens, texts, truncated, counts };
}

/** The errors of several steps by "STATUS CLASS", the most frequent first: [name, count]. */
export function errorsIn(steps) {
  const sums = new Map();
  for (const step of steps) {
    for (const [name, number] of Object.entries(step.errors_by)) sums.set(name, (sums.get(name) ?? 0) + number);
  }
  return [...sums].sort((one, other) => other[1] - one[1]);
}

/** Sums of columns; at least `least` of them. */
function summed(rows, least) {
  const sums = Array(Math.max(least, ...rows.map((row) => row.length))).fill(0);
  for (const row of rows) row.forEach((value, at) => (sums[at] += value));
  return sums;
}

/** The quantile `part`, interpolated within its bucket; null without values. */
export function percentileMs(counts, bounds, part) {
  const all = counts.reduce((sum, value) => sum + value, 0);
  if (all <= 0) return null;
  let below = 0;
  for (const [at, value] of counts.entries()) {
    if (value > 0 && below + value >= part * all) {
      const least = at === 0 ? 0 : bounds[at - 1];
      const most = bounds[at] ?? least;
      return 1000 * (least + ((part * all - below) / value) * (most - least));
    }
    below += value;
  }
  return 1000 * bounds.at(-1);
}
