// Elements of the page. Text is always text: nothing here, or anywhere, parses markup.

/** An element with properties and children; a string child becomes a text node. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A button; `kind` is `quiet`, or `primary`, which submits its form. */
export function button(label, kind = "", more = {}) {
  const type = kind === "primary" ? "submit" : "button";
  return element("button", { type, className: kind, ...more }, label);
}

/** A button that says for a moment that it has worked. */
export function copyButton(text) {
  const made = button("Copy", "quiet");
  made.addEventListener("click", async () => {
    made.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    setTimeout(() => (made.textContent = "Copy"), 1500);
  });
  return made;
}

async function copy(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  // Plain HTTP from another machine has no clipboard, but this.
  const area = element("textarea", { value: text, className: "unseen" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
