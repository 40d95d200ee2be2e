// The admin API as this page uses it.

import { call, events, headersWith, Refused } from "./http.js";

export { Refused };

const BASE = "admin/v1/";
const JSON_TYPE = { "content-type": "application/json" };

/** Snapshots of the platform, as they come; Refused however it fails. */
export async function* watch(key, signal) {
  const reply = await call(`${BASE}watch`, { headers: headersWith(key), signal });
  try {
    for await (const data of events(reply.body)) yield JSON.parse(data);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The gateway is gone.");
  }
}

/** What a change answers. */
export async function post(path, key, body = {}) {
  const headers = headersWith(key, JSON_TYPE);
  const wish = { method: "POST", headers, body: JSON.stringify(body) };
  return (await call(BASE + path, wish)).json();
}
