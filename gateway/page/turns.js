// How turns of a conversation look.

import { plural } from "./answer.js";
import { button, copyButton, element } from "./element.js";
import { Prose } from "./prose.js";

/** What the user said. `edited(text)` is called with another text in its place. */
export function userTurn(text, edited) {
  const body = element("div", { className: "bubble" }, text);
  const edit = button("Edit", "quiet", { "data-last": "edit" });
  const actions = element("div", { className: "actions" }, edit, copyButton(() => text));
  const turn = element("article", { className: "turn user", ariaLabel: "You" }, body, actions);
  edit.addEventListener("click", () => {
    const form = editor(text, edited, () => {
      form.replaceWith(body);
      actions.hidden = false;
      edit.focus();
    });
    actions.hidden = true;
    body.replaceWith(form);
    form.elements.text.focus();
  });
  return turn;
}

function editor(text, edited, cancelled) {
  const properties = { name: "text", value: text, rows: 3, ariaLabel: "Your message" };
  const area = element("textarea", properties);
  const cancel = button("Cancel");
  const row = element("div", { className: "row" }, cancel, button("Send again", "primary"));
  const form = element("form", { className: "editor" }, area, row);
  cancel.addEventListener("click", cancelled);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (area.value.trim()) edited(area.value);
  });
  return form;
}

/** An answer; `grow` draws what has come since. */
export class AnswerTurn {
  #answer;
  #drawn = { reasoning: 0, content: 0 };

  /** `again()` asks anew; `resume()` goes on once all calls have results. */
  constructor(answer, again, resume) {
    this.#answer = answer;
    this.again = again;
    this.resume = resume;
    this.shown = []; // a card for each call
    this.count = element("span", { className: "count" });
    this.thoughts = element("div", { className: "thoughts" });
    const summary = element("summary", {}, "Reasoning ", this.count);
    const folded = { className: "reasoning", hidden: true };
    this.folded = element("details", folded, summary, this.thoughts);
    const waiting = element("span", {}, "Waiting for the first token");
    this.waiting = element("p", { className: "waiting" }, waiting);
    this.content = element("div", { className: "content" });
    this.prose = new Prose(this.content);
    this.cards = element("div", { className: "cards" });
    this.end = element("footer");
    const parts = [this.folded, this.waiting, this.content, this.cards, this.end];
    this.node = element("article", { className: "turn answer", ariaLabel: "Model" }, ...parts);
    this.node.ariaBusy = "true";
  }

  grow() {
    const { reasoning, content, calls, isOver, firstMs } = this.#answer;
    this.waiting.hidden = isOver || firstMs !== null;
    if (reasoning.length > this.#drawn.reasoning) {
      this.folded.hidden = false;
      this.thoughts.append(reasoning.slice(this.#drawn.reasoning));
    }
    const isThinking = !isOver && !content && !calls.length;
    this.folded.classList.toggle("busy", isThinking);
    this.count.textContent = plural(reasoning.length, "character");
    if (content.length > this.#drawn.content) this.prose.append(content.slice(this.#drawn.content));
    this.#drawn = { reasoning: reasoning.length, content: content.length };
    calls.forEach((call, index) => this.#card(index).show(call));
  }

  /** The answer is over: whatever is to be said about it. */
  finish() {
    this.grow();
    this.prose.finish();
    this.node.ariaBusy = "false";
    if (this.#answer.error) this.end.append(complaint(this.#answer.error));
    if (this.#answer.awaitsResults) this.#ask();
    this.end.append(facts(this.#answer.facts, "facts"));
    this.end.append(facts(this.#answer.timingFacts, "facts timings"));
    const again = button("Regenerate", "quiet", { "data-last": "again" });
    again.addEventListener("click", () => this.again());
    const copy = this.#answer.content ? copyButton(() => this.#answer.content) : null;
    this.end.append(element("div", { className: "actions" }, again, copy));
  }

  #card(index) {
    if (!this.shown[index]) {
      this.shown[index] = new Card();
      this.cards.append(this.shown[index].node);
    }
    return this.shown[index];
  }

  /** A box for the result of each call, and a button that goes on. */
  #ask() {
    const calls = this.#answer.madeCalls;
    const boxes = calls.map((call, index) => this.shown[index].askResult(call.name));
    const label = calls.length > 1 ? "Send results" : "Send result";
    const send = button(label, "primary");
    const form = element("form", { className: "results" }, ...this.cards.children, send);
    this.cards.replaceChildren(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      calls.forEach((call, index) => (call.result = boxes[index].value));
      boxes.forEach((box) => (box.readOnly = true));
      send.remove();
      this.resume();
    });
  }

  /** Where the user has to type. */
  focusResult() {
    this.node.querySelector("textarea")?.focus();
  }
}

class Card {
  constructor() {
    this.name = element("strong");
    this.id = element("span", { className: "id" });
    this.code = element("code");
    const badge = element("span", { className: "badge" }, "Tool call");
    const head = element("header", {}, badge, this.name, this.id);
    const pre = element("pre", { tabIndex: 0 }, this.code);
    this.node = element("section", { className: "card" }, head, pre);
  }

  show({ id, name, arguments: text }) {
    this.name.textContent = name;
    this.id.textContent = id;
    this.code.textContent = indented(text);
  }

  askResult(name) {
    const box = element("textarea", {
      rows: 2,
      required: true,
      className: "code",
      ariaLabel: `Result of ${name}`,
      placeholder: "What did the call return?",
    });
    this.node.append(box);
    return box;
  }
}

function indented(text) {
  if (/\d{16}/.test(text)) return text; // JavaScript's numbers would not be the model's
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet, or not JSON at all
  }
}

function facts(parts, className) {
  const spans = parts.map((part) => element("span", {}, part));
  return element("p", { className, hidden: !parts.length }, ...spans);
}

/** What went wrong, with all that a report needs. */
function complaint({ status, message, code, requestId, retryAfterS }) {
  const details = [code, status >= 400 ? `HTTP ${status}` : "", requestId].filter(Boolean);
  return element(
    "div",
    { className: "error", role: "alert" },
    element("strong", {}, status === 200 ? "The answer broke off" : "No answer"),
    element("p", {}, retryAfterS ? `${message} Try again in ${retryAfterS} s.` : message),
    element("p", { className: "details" }, ...details.map((detail) => element("code", {}, detail))),
  );
}
