// The gateway's API as this page uses it.

const JSON_AND_TIMINGS = { "content-type": "application/json", "x-diptych-timings": "1" };

/** An answer that is an error, before or within a stream. `status` 0: none came at all. */
export class Refused extends Error {
  constructor(status, message, { code = "", requestId = "", retryAfterS = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code: code ?? "", requestId: requestId ?? "", retryAfterS });
  }
}

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

/** Data of the server-sent events in a body, each as soon as it is whole. */
async function* events(body) {
  let rest = "";
  let data = [];
  for await (const text of read(body.pipeThrough(new TextDecoderStream()))) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

async function* read(stream) {
  const reader = stream.getReader(); // not every browser iterates over streams
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function call(path, wish) {
  let reply;
  try {
    reply = await fetch(path, wish);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The gateway cannot be reached.");
  }
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  const error = body?.error ?? { message: `The server answered with status ${reply.status}.` };
  const retryAfterS = Number(reply.headers.get("retry-after")) || 0;
  throw told(reply.status, error, reply.headers.get("x-request-id"), retryAfterS);
}

function told(status, error, requestId, retryAfterS = 0) {
  const more = { code: error.code, requestId: error.request_id ?? requestId, retryAfterS };
  return new Refused(status, String(error.message), more);
}

function headersWith(key, headers = {}) {
  return key ? { ...headers, authorization: `Bearer ${key}` } : headers;
}
