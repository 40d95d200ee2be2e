// The figures at the top.

import { element } from "./element.js";
import { number, percent, rate } from "./figures.js";
import { History } from "./rates.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [120, 30];

class Tile {
  #value = element("strong");
  #detail = element("span", { className: "detail" });
  #history = new History();
  #line = document.createElementNS(SVG, "polyline");

  constructor(name) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(this.#line);
    const label = element("span", { className: "label" }, name);
    this.node = element("article", { className: "tile" }, label, this.#value, this.#detail, svg);
  }

  show(value, text, detail) {
    this.#history.add(value);
    this.#value.textContent = text;
    this.#detail.textContent = detail;
    this.#line.setAttribute("points", this.#history.points(WIDTH, HEIGHT));
  }
}

export class Overview {
  #requests = new Tile("Requests in flight");
  #queue = new Tile("Waiting for a worker");
  #tokens = new Tile("Tokens / s");
  #hits = new Tile("Prompt tokens from cache");
  #kv = new Tile("KV blocks live");

  constructor(node) {
    const tiles = [this.#requests, this.#queue, this.#tokens, this.#hits, this.#kv];
    node.append(...tiles.map((tile) => tile.node));
  }

  show(snapshot, workers) {
    const sum = (of) => workers.reduce((total, worker) => total + of(worker), 0);
    const { leases, queued, gateway } = snapshot;
    this.#requests.show(leases, number(leases), `${number(gateway.requests)} at this gateway`);
    this.#queue.show(queued, number(queued), queued ? "in the router's queue" : "nobody waits");
    const speed = sum((w) => w.tokensPerS);
    this.#tokens.show(speed, rate(speed), `${number(sum((w) => w.load.tokens_total))} since start`);
    const hit = sum((w) => w.load.hit_tokens_total);
    const asked = sum((w) => w.load.query_tokens_total);
    const tier = sum((w) => w.load.brought_tokens_total);
    const brought = tier ? `, ${number(tier)} from the tier` : "";
    this.#hits.show(asked ? hit / asked : 0, percent(hit, asked), `${number(hit)} of ${number(asked)}${brought}`);
    const blocks = sum((w) => w.num_blocks);
    const live = blocks - sum((w) => w.load.free_blocks);
    const cached = sum((w) => w.load.cached_blocks);
    this.#kv.show(live, percent(live, blocks), `${number(live)} of ${number(blocks)}, ${number(cached)} cached`);
  }
}
