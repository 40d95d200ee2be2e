// The console: shows what the watch streams, and sends what the operator wants.

import { post, Refused, watch } from "./api.js";
import { number } from "./figures.js";
import { Gateways, showDecisions } from "./lists.js";
import { Overview } from "./overview.js";
import { Pools } from "./pools.js";
import { Rates } from "./rates.js";
import { showStores } from "./stores.js";

const KEY_STORE = "diptych.console.key";
const AGAIN_MS = 1000;

const byId = (id) => document.getElementById(id);
const [notice, live, model, access, key, askKey] =
  ["notice", "live", "model", "access", "key", "ask-key"].map(byId);

const rates = new Rates();
const overview = new Overview(byId("overview"));
const pools = new Pools(byId("pools"), act);
const gateways = new Gateways(byId("gateways"), act);
let watching = null; // the AbortController of the stream

// Showing

function show(snapshot) {
  const { members, router, ready, reasons } = snapshot;
  const workers = members.filter((member) => member.role !== "gateway");
  for (const worker of workers) {
    worker.tokensPerS = rates.of(worker.id + worker.incarnation, worker.load.tokens_total, snapshot.time);
  }
  const context = snapshot.max_model_len ? ` · ${number(snapshot.max_model_len)} tokens` : "";
  model.textContent = snapshot.model + context;
  const away = snapshot.routers.filter((each) => each.error);
  if (!router.live) say("router away", "bad", `No router answers at ${router.address}.`);
  else if (snapshot.gateway.draining) say("draining", "warn", "This gateway takes no new requests.");
  else if (!ready) say("not ready", "warn", reasons.join("; "));
  else if (away.length) say("a router away", "warn", away.map((each) => `${each.address}: ${each.error}`).join("; "));
  else if (snapshot.policy === "own_ledger") say("no reports", "warn", "No worker is heard: the router decides by its own ledger.");
  else say("ready", "good", snapshot.routers.map(heard).join("; "));
  overview.show(snapshot, workers);
  pools.show(workers, snapshot.can_scale, snapshot.desired);
  gateways.show(members.filter((member) => member.role === "gateway"), snapshot.gateway_id, snapshot.gateway.draining);
  showStores(byId("stores"), snapshot.stores);
  showDecisions(byId("decisions"), snapshot.decisions, snapshot.time);
}

function heard({ router_id, address, leases, queued, stale_peers }) {
  const blind = stale_peers ? `, and does not hear ${number(stale_peers)} others` : "";
  const name = router_id ? ` (${router_id})` : "";
  return `The router at ${address}${name} has ${number(leases)} requests, ${number(queued)} waiting${blind}`;
}

function say(text, kind, more) {
  live.textContent = text;
  live.className = `pill ${kind}`;
  live.title = more;
}

function tell(text, isBad = true) {
  notice.textContent = text;
  notice.hidden = !text;
  notice.className = isBad ? "bad" : "good";
}

// Listening

async function follow() {
  watching?.abort();
  const own = (watching = new AbortController());
  while (watching === own) {
    try {
      for await (const snapshot of watch(key.value.trim(), own.signal)) show(snapshot);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Refused)) throw error;
      say("no connection", "bad", error.message);
      if (error.status === 401 || error.status === 403) return showAccess(error.message);
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

// Acting

async function act(path, body) {
  tell("");
  try {
    const done = await post(path, key.value.trim(), body);
    if (path === "scale") tell(scaled(done), false);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.status === 401 || error.status === 403) showAccess(error.message);
    else tell(error.message);
  }
}

function scaled({ added, removed }) {
  const parts = [];
  if (added.length) parts.push(`added ${added.join(", ")}`);
  if (removed.length) parts.push(`removed ${removed.join(", ")}`);
  return parts.length ? `Done: ${parts.join("; ")}.` : "Nothing had to change.";
}

function showAccess(why) {
  tell(why);
  access.hidden = false;
  askKey.setAttribute("aria-expanded", "true");
  key.focus();
}

function hideAccess() {
  access.hidden = true;
  askKey.setAttribute("aria-expanded", "false");
}

// What the user does

access.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY_STORE, key.value);
  hideAccess();
  tell("");
  follow();
});
askKey.addEventListener("click", () => (access.hidden ? showAccess("") : hideAccess()));
byId("close-access").addEventListener("click", hideAccess);

key.value = sessionStorage.getItem(KEY_STORE) ?? "";
follow();
