// Text of the model as elements: paragraphs, headings, inline code, bold, and fenced code.
// It grows at its end, and only the block at the end is drawn again.

import { copyButton, element } from "./element.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^(#{1,6}) (.*)/;
const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

export class Prose {
  #root;
  #block = null; // {text, draw(text), fence}: that of the last whole line
  #line = ""; // the line that is not whole yet

  constructor(root) {
    this.#root = root;
  }

  append(text) {
    const lines = (this.#line + text).split("\n");
    this.#line = lines.pop();
    for (const line of lines) this.#take(line);
    this.#preview();
  }

  /** No more will come. */
  finish() {
    if (this.#line) this.#take(this.#line);
    this.#line = "";
  }

  #take(line) {
    const fence = FENCE.exec(line);
    if (this.#block?.fence) {
      if (fence && fence[1].startsWith(this.#block.fence) && !fence[2]) this.#block = null;
      else this.#extend(line);
    } else if (fence) {
      this.#drop();
      this.#block = this.#add(codeBlock(fence[2].trim(), fence[1]));
    } else if (line.trim() === "") {
      this.#drop();
    } else if (HEADING.test(line)) {
      this.#drop();
      this.#add(heading(line));
    } else {
      this.#extend(line);
    }
  }

  /** Show the unfinished line, unless it may become a fence. */
  #preview() {
    if (!this.#line || /^ {0,3}[`~]/.test(this.#line)) return;
    this.#block ??= this.#add(paragraph());
    this.#block.draw(this.#block.text + this.#line);
  }

  #extend(line) {
    this.#block ??= this.#add(paragraph());
    this.#block.text += `${line}\n`;
    this.#block.draw(this.#block.text);
  }

  /** The block ends; a preview of a line that turned out to be no part of it goes. */
  #drop() {
    if (this.#block?.text) this.#block.draw(this.#block.text);
    else this.#block?.node.remove();
    this.#block = null;
  }

  #add(block) {
    this.#root.append(block.node);
    return block;
  }
}

function paragraph() {
  const node = element("p");
  return { node, text: "", draw: (text) => node.replaceChildren(...inline(text.trimEnd())) };
}

function heading(line) {
  const [, hashes, text] = HEADING.exec(line);
  return { node: element(`h${Math.min(6, hashes.length + 2)}`, {}, ...inline(text)) };
}

function codeBlock(language, fence) {
  const code = element("code");
  const name = element("span", {}, language || "code");
  const head = element("figcaption", {}, name, copyButton(() => code.textContent));
  const pre = element("pre", { tabIndex: 0 }, code);
  const node = element("figure", { className: "fenced" }, head, pre);
  return { node, text: "", fence, draw: (text) => (code.textContent = text) };
}

function inline(text) {
  return text.split(INLINE).filter(Boolean).map((part) => {
    if (!INLINE.test(part)) return part;
    if (part.startsWith("`")) return element("code", {}, part.slice(1, -1));
    return element("strong", {}, part.slice(2, -2));
  });
}
