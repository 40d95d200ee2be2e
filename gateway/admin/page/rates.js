// What changed from one snapshot to the next, per second; and the last minutes of it.

const KEPT = 90; // points of a line

/** Rates of counters that only grow, by name; a worker that began anew counts from 0. */
export class Rates {
  #last = new Map();

  /** How fast `name` grows, smoothed; 0 until it was seen twice. */
  of(name, value, timeS) {
    const last = this.#last.get(name);
    if (!last || value < last.value) {
      this.#last.set(name, { value, timeS, rate: 0 });
      return 0;
    }
    const passedS = timeS - last.timeS;
    if (passedS < 0.5) return last.rate;
    const now = (value - last.value) / passedS;
    const smooth = last.rate && now ? 0.5 * (last.rate + now) : now;
    this.#last.set(name, { value, timeS, rate: smooth });
    return smooth;
  }
}

/** The newest values of something. */
export class History {
  #values = [];

  add(value) {
    this.#values.push(value);
    if (this.#values.length > KEPT) this.#values.shift();
  }

  /** Points of a polyline in a box, the newest at its right end. */
  points(width, height) {
    const top = Math.max(1e-9, ...this.#values);
    const step = width / (KEPT - 1);
    const start = width - step * (this.#values.length - 1);
    const at = (value, i) => `${(start + i * step).toFixed(1)},${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`;
    return this.#values.map(at).join(" ");
  }
}
