// Pools of workers: who is there, what each carries, and the buttons.

import { button, element } from "./element.js";
import { number, percent, rate } from "./figures.js";

const COLUMNS = ["Worker", "Requests", "Slots", "KV blocks", "Hit rate", "Tokens/s", ""];
const WORK = { prefill: "prompt → KV", decode: "KV → tokens", hybrid: "prompt → tokens" };
const MOST = 64; // workers of a pool

/** A bar of what is used, and of what is kept but free. */
class Bar {
  #used = element("i", { className: "used" });
  #kept = element("i", { className: "kept" });
  #text = element("span");

  constructor(name) {
    const track = element("span", { className: "track" }, this.#used, this.#kept);
    this.node = element("td", { className: "bar", "data-of": name }, track, this.#text);
  }

  show(used, kept, all) {
    this.#used.style.width = `${all ? (100 * used) / all : 0}%`;
    this.#kept.style.width = `${all ? (100 * kept) / all : 0}%`;
    this.#text.textContent = `${number(used)}/${number(all)}`;
    this.node.title = kept ? `${number(kept)} more are free, and found by prefix` : "";
  }
}

class WorkerRow {
  #state = element("span", { className: "pill" });
  #place = element("small");
  #life = element("small");
  #requests = element("td");
  #slots = new Bar("slots");
  #blocks = new Bar("blocks");
  #hits = element("td", { className: "figure" });
  #speed = element("td", { className: "figure" });
  #drain = button("Drain", "quiet");
  #worker = null;

  constructor(id, act) {
    const name = element("td", { className: "name" }, element("b", {}, id), this.#state, this.#place, this.#life);
    const last = element("td", { className: "acts" }, this.#drain);
    const cells = [name, this.#requests, this.#slots.node, this.#blocks.node, this.#hits, this.#speed, last];
    this.node = element("tr", { "data-id": id }, ...cells);
    this.#drain.addEventListener("click", async () => {
      this.#drain.disabled = true;
      const verb = this.#worker.load.draining ? "undrain" : "drain";
      await act(`workers/${encodeURIComponent(id)}/${verb}`);
      this.#drain.disabled = false;
    });
  }

  show(worker) {
    this.#worker = worker;
    const { load } = worker;
    this.#state.textContent = worker.state;
    this.#state.title = worker.why;
    this.#state.className = `pill ${worker.state === "ready" ? "good" : "warn"}`;
    const life = worker.incarnation.slice(-6);
    this.#place.textContent = worker.address;
    this.#life.textContent = `pid ${worker.pid} · life ${life}`;
    this.#life.title = `layout ${worker.layout_hash.slice(0, 12)}, namespace ${worker.namespace.slice(0, 12)}`;
    const handoffs = load.tickets + load.reservations + load.pulls;
    const parts = [`${load.running} run`];
    if (load.waiting) parts.push(`${load.waiting} wait`);
    if (load.swapped) parts.push(`${load.swapped} swapped`);
    if (handoffs) parts.push(`${handoffs} hand over`);
    this.#requests.textContent = parts.join(", ");
    this.#slots.show(worker.num_slots - load.free_slots, 0, worker.num_slots);
    this.#blocks.show(worker.num_blocks - load.free_blocks, load.cached_blocks, worker.num_blocks);
    this.#hits.textContent = percent(load.hit_tokens_total, load.query_tokens_total);
    this.#speed.textContent = rate(worker.tokensPerS);
    this.#drain.textContent = load.draining ? "Undrain" : "Drain";
  }
}

/** How many workers a pool shall have. */
class Stepper {
  #count = element("output");
  #apply = button("Apply", "quiet");
  #there = 0;
  #wanted = 0;
  #isBusy = false;

  constructor(role, act) {
    const step = (by, label, sign) => {
      const made = button(sign, "quiet", { ariaLabel: label });
      made.addEventListener("click", () => this.#want(this.#wanted + by));
      return made;
    };
    this.node = element("span", { className: "stepper", hidden: true },
      step(-1, `One ${role} worker less`, "−"), this.#count, step(1, `One ${role} worker more`, "+"), this.#apply);
    this.#apply.addEventListener("click", async () => {
      this.#isBusy = true;
      this.#draw();
      await act("scale", { [role]: this.#wanted });
      this.#isBusy = false;
      this.#wanted = this.#there;
      this.#draw();
    });
  }

  show(there, canScale) {
    this.node.hidden = !canScale;
    if (this.#wanted === this.#there && !this.#isBusy) this.#wanted = there;
    this.#there = there;
    this.#draw();
  }

  #want(count) {
    if (this.#isBusy) return;
    this.#wanted = Math.min(MOST, Math.max(1, count));
    this.#draw();
  }

  #draw() {
    this.#count.textContent = this.#wanted;
    this.#apply.hidden = this.#wanted === this.#there && !this.#isBusy;
    this.#apply.disabled = this.#isBusy;
    this.#apply.textContent = this.#isBusy ? "Scaling…" : "Apply";
  }
}

class Pool {
  #rows = new Map();
  #body = element("tbody");
  #summary = element("span", { className: "faint" });
  #stepper;
  #act;

  constructor(role, act) {
    this.#act = act;
    this.#stepper = new Stepper(role, act);
    const title = element("h2", {}, role, element("span", { className: "faint" }, WORK[role]));
    const head = element("header", {}, title, this.#summary, this.#stepper.node);
    const columns = element("tr", {}, ...COLUMNS.map((name) => element("th", { scope: "col" }, name)));
    const table = element("table", {}, element("thead", {}, columns), this.#body);
    this.node = element("article", { className: "panel pool", "data-role": role }, head,
      element("div", { className: "scroll" }, table));
  }

  show(workers, canScale, desired) {
    for (const [id, row] of this.#rows) {
      if (workers.some((worker) => worker.id === id)) continue;
      row.node.remove();
      this.#rows.delete(id);
    }
    for (const worker of workers) {
      if (!this.#rows.has(worker.id)) {
        const row = new WorkerRow(worker.id, this.#act);
        this.#rows.set(worker.id, row);
        this.#body.append(row.node);
      }
      this.#rows.get(worker.id).show(worker);
    }
    const ready = workers.filter((worker) => worker.state === "ready").length;
    const leases = workers.reduce((sum, worker) => sum + worker.leases, 0);
    const wish = desired ? `, ${desired} desired` : "";
    this.#summary.textContent = `${ready} of ${workers.length} ready, ${leases} placed${wish}`;
    this.#stepper.show(workers.length, canScale);
  }
}

export class Pools {
  #pools = new Map();
  #node;
  #act;

  constructor(node, act) {
    this.#node = node;
    this.#act = act;
  }

  show(workers, canScale, desired) {
    const roles = Object.keys(WORK).filter((role) => workers.some((worker) => worker.role === role));
    for (const [role, pool] of this.#pools) {
      if (roles.includes(role)) continue;
      pool.node.remove();
      this.#pools.delete(role);
    }
    for (const role of roles) {
      if (!this.#pools.has(role)) {
        const pool = new Pool(role, this.#act);
        this.#pools.set(role, pool);
        this.#node.append(pool.node);
      }
      this.#pools.get(role).show(workers.filter((worker) => worker.role === role), canScale, desired[role]);
    }
  }
}
