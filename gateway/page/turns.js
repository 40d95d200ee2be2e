// How turns of a conversation look.

import { plural } from "./answer.js";
import { copyButton, element } from "./element.js";
import { Prose } from "./prose.js";

/** What the user said. `edited(text)` is called with another text in its place. */
export function userTurn(text, edited) {
  const body = element("div", { className: "bubble" }, text);
  const edit = element("button", { type: "button", className: "quiet", "data-last": "edit" }, "Edit");
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
  const area = element("textarea", { name: "text", value: text, rows: 3, ariaLabel: "Your message" });
  const cancel = element("button", { type: "button" }, "Cancel");
  const send = element("button", { type: "submit", className: "primary" }, "Send again");
  const form = element("form", { className: "editor" }, area, element("div", { className: "row" }, cancel, send));
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
    this.folded = element("details", { className: "reasoning", hidden: true }, element("summary", {}, "Reasoning ", this.count), this.thoughts);
    this.waiting = element("p", { className: "waiting" }, element("span", {}, "Waiting for the first token"));
    this.content = element("div", { className: "content" });
    this.prose = new Prose(this.content);
    this.cards = element("div", { className: "cards" });
    this.end = element("footer");
    this.node = element("article", { className: "turn answer", ariaLabel: "Model" }, this.folded, this.waiting, this.content, this.cards, this.end);
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
    this.end.append(facts(this.#answer.facts, "facts"), facts(this.#answer.timingFacts, "facts timings"));
    const again = element("button", { type: "button", className: "quiet", "data-last": "again" }, "Regenerate");
    again.addEventListener("click", () => this.again());
    this.end.append(element("div", { className: "actions" }, again, this.#answer.content ? copyButton(() => this.#answer.content) : null));
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
    const button = element("button", { type: "submit", className: "primary" }, calls.length > 1 ? "Send results" : "Send result");
    const form = element("form", { className: "results" }, ...this.cards.children, button);
    this.cards.replaceChildren(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      calls.forEach((call, index) => (call.result = boxes[index].value));
      boxes.forEach((box) => (box.readOnly = true));
      button.remove();
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
    const head = element("header", {}, element("span", { className: "badge" }, "Tool call"), this.name, this.id);
    this.node = element("section", { className: "card" }, head, element("pre", { tabIndex: 0 }, this.code));
  }

  show({ id, name, arguments: text }) {
    this.name.textContent = name;
    this.id.textContent = id;
    this.code.textContent = indented(text);
  }

  askResult(name) {
    const box = element("textarea", { rows: 2, required: true, className: "code", ariaLabel: `Result of ${name}`, placeholder: "What did the call return?" });
    this.node.append(box);
    return box;
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet, or not JSON at all
  }
}

function facts(parts, className) {
  return element("p", { className, hidden: !parts.length }, ...parts.map((part) => element("span", {}, part)));
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
