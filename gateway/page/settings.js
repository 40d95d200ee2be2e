// The settings form: what it adds to a request, and how it outlives a reload (not the tab).

const NUMBERS = {
  temperature: "a number from 0 to 2",
  top_p: "a number above 0, up to 1",
  max_tokens: "a whole number from 1",
  seed: "a whole number",
};
const KEPT = ["system", "thinking", "effort", ...Object.keys(NUMBERS), "tools", "tool_choice"];
const STORE = "diptych.playground.settings";
const KEY_STORE = "diptych.playground.key";

/** A field that holds what no request can say. */
export class BadField extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

export class Settings {
  #form;
  #fields;

  /** `changedKey` is called when the user has given another key. */
  constructor(form, changedKey) {
    this.#form = form;
    this.#fields = form.elements;
    this.#restore();
    form.addEventListener("input", () => this.#changed());
    this.#fields.key.addEventListener("change", changedKey);
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  get key() {
    return this.#fields.key.value.trim();
  }

  get system() {
    return this.#fields.system.value.trim();
  }

  reset() {
    const { key } = this.#fields;
    const kept = key.value;
    this.#form.reset();
    key.value = kept;
    this.#changed();
  }

  /** Fields of a request; BadField if one of ours is wrong. */
  wishes() {
    const thinks = this.#fields.thinking.checked;
    const wishes = { thinking: { type: thinks ? "enabled" : "disabled" } };
    if (thinks) wishes.reasoning_effort = this.#fields.effort.valueAsNumber;
    for (const [name, wanted] of Object.entries(NUMBERS)) {
      const field = this.#fields[name];
      if (!field.validity.valid || !Number.isSafeInteger(Math.trunc(field.valueAsNumber || 0))) {
        throw new BadField(field, `${labelOf(field)}: expected ${wanted}.`);
      }
      if (field.value !== "") wishes[name] = field.valueAsNumber;
    }
    const tools = this.#tools();
    if (!tools.length) return wishes;
    return { ...wishes, tools, tool_choice: this.#fields.tool_choice.value };
  }

  #tools() {
    const field = this.#fields.tools;
    if (!field.value.trim()) return [];
    let read;
    try {
      read = JSON.parse(field.value);
    } catch (error) {
      throw new BadField(field, `Tools: not JSON (${error.message}).`);
    }
    const tools = Array.isArray(read) ? read : [read];
    if (!tools.every((tool) => tool && typeof tool === "object")) {
      throw new BadField(field, "Tools: expected a list of objects.");
    }
    const isWhole = (tool) => "function" in tool || "type" in tool;
    return tools.map((tool) => (isWhole(tool) ? tool : { type: "function", function: tool }));
  }

  #changed() {
    this.#show();
    const kept = Object.fromEntries(KEPT.map((name) => [name, valueOf(this.#fields[name])]));
    sessionStorage.setItem(STORE, JSON.stringify(kept));
    sessionStorage.setItem(KEY_STORE, this.#fields.key.value);
  }

  #restore() {
    const kept = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
    for (const [name, value] of Object.entries(kept)) {
      const field = this.#fields[name];
      if (!field) continue; // an older version's
      if (field.type === "checkbox") field.checked = value;
      else field.value = value;
    }
    this.#fields.key.value = sessionStorage.getItem(KEY_STORE) ?? "";
    this.#show();
  }

  #show() {
    this.#fields.effort.disabled = !this.#fields.thinking.checked;
    this.#fields["effort-shown"].value = this.#fields.effort.value;
    let wrong = null;
    try {
      this.wishes();
    } catch (error) {
      wrong = error.field;
    }
    for (const name of KEPT) {
      const field = this.#fields[name];
      if (field === wrong) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
    }
  }
}

function valueOf(field) {
  return field.type === "checkbox" ? field.checked : field.value;
}

function labelOf(field) {
  return field.labels[0].textContent.trim();
}
