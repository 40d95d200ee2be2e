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

/** A button that says for a moment that it has worked. */
export function copyButton(text) {
  const button = element("button", { type: "button", className: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const area = element("textarea", { value: text, className: "unseen" }); // plain HTTP has no clipboard
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
