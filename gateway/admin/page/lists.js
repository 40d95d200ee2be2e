// Gateways, and what the router decided.

import { button, element } from "./element.js";
import { ago, number } from "./figures.js";

export class Gateways {
  #node;
  #drain = button("Drain", "quiet");
  #isHeld = false;

  constructor(node, act) {
    this.#node = node;
    this.#drain.addEventListener("click", () => act(`gateway/${this.#isHeld ? "undrain" : "drain"}`));
  }

  show(gateways, ownId, isHeld) {
    this.#isHeld = isHeld;
    this.#drain.textContent = isHeld ? "Undrain" : "Drain";
    const rows = gateways.map((gateway) => {
      const state = gateway.id === ownId && isHeld ? "draining" : gateway.state;
      const pill = element("span", { className: `pill ${state === "ready" ? "good" : "warn"}` }, state);
      const name = element("td", { className: "name" }, element("b", {}, gateway.id), pill,
        element("small", {}, `${gateway.address} · pid ${gateway.pid}`));
      const streams = element("td", {}, `${number(gateway.load.streams)} requests`);
      const sessions = element("td", {}, `${number(gateway.load.sessions)} sessions`);
      return element("tr", { "data-id": gateway.id }, name, streams, sessions, element("td", { className: "acts" }));
    });
    const own = rows.find((row) => row.dataset.id === ownId);
    const body = element("tbody", {}, ...rows);
    const hadFocus = document.activeElement === this.#drain;
    own?.lastChild.append(this.#drain);
    this.#node.replaceChildren(element("table", {}, body));
    if (hadFocus) this.#drain.focus();
  }
}

export function showDecisions(node, decisions, nowS) {
  if (!decisions.length) {
    return node.replaceChildren(element("p", { className: "faint" }, "No request was placed yet."));
  }
  const rows = decisions.map((decision) => element("tr", {},
    element("td", { className: "when" }, ago(nowS - decision.time)),
    element("td", {}, element("span", { className: `phase ${decision.phase}` }, decision.phase)),
    element("td", { className: "worker" }, element("b", {}, decision.worker)),
    element("td", { className: "reasons" }, decision.reasons.join("; ")),
    element("td", {}, element("code", { title: decision.request_id }, short(decision.request_id)))));
  node.replaceChildren(element("table", {}, element("tbody", {}, ...rows)));
}

function short(id) {
  return id.length > 16 ? `${id.slice(0, 12)}…` : id;
}
