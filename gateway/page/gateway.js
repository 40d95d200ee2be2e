// The gateway's API as this page uses it.

import { call, events, headersWith, Refused, told } from "./http.js";

export { Refused };

const JSON_AND_TIMINGS = { "content-type": "application/json", "x-diptych-timings": "1" };

/** Names of the models that the key may use. */
export async function modelNames(key) {
  const reply = await call("v1/models", { headers: headersWith(key) });
  return (await reply.json()).data.map((model) => model.id);
}

/** The chunks of a streamed answer; Refused however it fails, AbortError once `signal` says so. */
export async function* chat(request, key, signal) {
  const headers = headersWith(key, JSON_AND_TIMINGS);
  const wish = { ...request, stream: true, stream_options: { include_usage: true } };
  const body = JSON.stringify(wish);
  const reply = await call("v1/chat/completions", { method: "POST", headers, body, signal });
  const requestId = reply.headers.get("x-request-id");
  try {
    for await (const data of events(reply.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw told(200, chunk.error, requestId);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Refused(200, "The connection broke within the answer.", { requestId });
  }
  throw new Refused(200, "The answer ended too early.", { requestId });
}
