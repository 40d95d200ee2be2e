// HTTP as our pages use it: calls that fail with what was said, and server-sent events.

/** An answer that is an error, before or within a stream. `status` 0: none came at all. */
export class Refused extends Error {
  constructor(status, message, { code = "", requestId = "", retryAfterS = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code: code ?? "", requestId: requestId ?? "", retryAfterS });
  }
}

/** Data of the server-sent events in a body, each as soon as it is whole. */
export async function* events(body) {
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

/** A reply that is fine; Refused otherwise, AbortError if it was aborted. */
export async function call(path, wish) {
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

/** What an error envelope says. */
export function told(status, error, requestId, retryAfterS = 0) {
  const more = { code: error.code, requestId: error.request_id ?? requestId, retryAfterS };
  return new Refused(status, String(error.message), more);
}

/** Headers that carry the key, if there is one. */
export function headersWith(key, headers = {}) {
  return key ? { ...headers, authorization: `Bearer ${key}` } : headers;
}
