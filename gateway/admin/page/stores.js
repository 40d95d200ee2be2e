// Nodes of the KV cache: how full, with what.

import { element } from "./element.js";
import { bytes, number } from "./figures.js";

const CLASSES = ["chat", "agent", "pinned"];

export function showStores(node, stores) {
  if (!stores.length) return node.replaceChildren(element("p", { className: "faint" }, "No node is told to this gateway."));
  node.replaceChildren(...stores.map((store) => (store.error ? lost(store) : card(store))));
}

function lost(store) {
  const pill = element("span", { className: "pill bad" }, "away");
  return element("div", { className: "store" }, element("b", {}, store.address), pill,
    element("p", { className: "faint" }, store.error));
}

function card(store) {
  const head = element("p", {}, element("b", {}, store.id), element("small", {}, store.address));
  const parts = [head];
  if (store.disk) parts.push(stack(store), legend(store));
  parts.push(element("p", { className: "faint" },
    `memory ${bytes(store.memory_bytes)} of ${bytes(store.memory_capacity)}, `
    + `${number(store.memory_parts)} parts · ${number(store.disk_parts)} parts on disk · `
    + `${bytes(store.queued_bytes)} wait for it · ${number(store.pins)} pins`));
  return element("div", { className: "store", "data-id": store.id }, ...parts);
}

function stack({ classes, disk }) {
  const track = element("span", { className: "track wide" });
  for (const name of CLASSES) track.append(slice(name, classes[name] ?? 0, disk.capacity));
  track.append(slice("dead", disk.dead, disk.capacity), slice("reserved", disk.reserved, disk.capacity));
  return track;
}

function slice(name, size, whole) {
  const made = element("i", { className: name, title: `${name} ${bytes(size)}` });
  made.style.width = `${whole ? (100 * size) / whole : 0}%`;
  return made;
}

function legend({ classes, disk }) {
  const sizes = [...CLASSES.map((name) => [name, classes[name] ?? 0]), ["dead", disk.dead], ["reserved", disk.reserved]];
  const shown = sizes.filter(([, size]) => size > 0).map(([name, size]) => entry(name, bytes(size)));
  return element("p", { className: "legend" }, ...shown, entry("free", `${bytes(disk.free)} of ${bytes(disk.capacity)}`));
}

function entry(name, text) {
  return element("span", {}, element("i", { className: name }), `${name} ${text}`);
}
