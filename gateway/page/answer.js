// One answer while it grows, and what it was like.

/** Takes the chunks of a stream. Times are milliseconds of `performance.now()`. */
export class Answer {
  reasoning = "";
  content = "";
  calls = []; // {id, name, arguments, result}; a result is what the user says came of the call
  usage = null;
  timings = null;
  finish = null;
  error = null;
  isStopped = false;
  isOver = false;

  constructor(nowMs) {
    this.startMs = nowMs;
    this.firstMs = null;
    this.lastMs = null;
  }

  take(chunk, nowMs) {
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? chunk.usage?.timings ?? this.timings;
    const [choice] = chunk.choices ?? [];
    if (!choice) return;
    const { reasoning_content: reasoning, content, tool_calls: calls } = choice.delta;
    if (reasoning || content || calls?.length) {
      this.firstMs ??= nowMs;
      this.lastMs = nowMs;
    }
    this.reasoning += reasoning ?? "";
    this.content += content ?? "";
    for (const fragment of calls ?? []) this.#takeCall(fragment);
    this.finish = choice.finish_reason ?? this.finish;
  }

  #takeCall({ index, id, function: { name, arguments: text } = {} }) {
    this.calls[index] ??= { id, name, arguments: "", result: null };
    this.calls[index].arguments += text ?? "";
  }

  /** Calls that were cut off are not made. */
  get madeCalls() {
    return this.isOver && this.finish === "tool_calls" ? this.calls : [];
  }

  get awaitsResults() {
    return this.madeCalls.some((call) => call.result === null);
  }

  /** Its messages in the next request: none if it says nothing. */
  get messages() {
    const calls = this.madeCalls;
    if (!this.content && !calls.length) return [];
    const said = { role: "assistant", content: this.content };
    if (this.reasoning) said.reasoning_content = this.reasoning;
    if (!calls.length) return [said];
    said.tool_calls = calls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    const told = ({ id, result }) => ({ role: "tool", tool_call_id: id, content: result });
    return [said, ...calls.map(told)];
  }

  /** What is said under it, in parts. */
  get facts() {
    const facts = this.usage ? this.#counts() : [];
    if (this.firstMs !== null) facts.push(`first token ${shownMs(this.firstMs - this.startMs)}`);
    const rate = this.#tokensPerS();
    if (rate) facts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
    if (this.isStopped) facts.push("stopped");
    if (this.finish === "length") facts.push("cut at the token limit");
    return facts;
  }

  /** The server's own timings, in parts: whatever numbers it tells. */
  get timingFacts() {
    const numbers = Object.entries(this.timings ?? {}).filter(([, v]) => typeof v === "number");
    const told = numbers.map(([name, value]) => {
      const words = name.replace(/_(ms|s)$/, "").replaceAll("_", " ");
      if (name.endsWith("_ms")) return `${words} ${shownMs(value)}`;
      return name.endsWith("_s") ? `${words} ${shownMs(value * 1000)}` : `${words} ${round(value)}`;
    });
    return told.length ? ["server:", ...told] : [];
  }

  #counts() {
    const { prompt_tokens: prompt, completion_tokens: sampled } = this.usage;
    const cached = this.usage.prompt_tokens_details?.cached_tokens;
    const thought = this.usage.completion_tokens_details?.reasoning_tokens;
    return [
      `prompt ${prompt}${cached ? ` (${cached} cached)` : ""}`,
      `${plural(sampled, "token")}${thought ? ` (${thought} reasoning)` : ""}`,
    ];
  }

  #tokensPerS() {
    const count = (this.usage?.completion_tokens ?? 0) - 1; // the first one is the prompt's work
    const spentMs = (this.lastMs ?? 0) - (this.firstMs ?? 0);
    return count > 0 && spentMs > 0 ? (count * 1000) / spentMs : 0;
  }
}

export function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function shownMs(ms) {
  return ms < 1000 ? `${round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

function round(value) {
  return value < 10 ? Number(value.toFixed(1)) : Math.round(value);
}
