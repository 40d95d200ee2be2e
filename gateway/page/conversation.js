// What was said so far: the user's texts, and an answer (or more, with tools) to each.

export class Conversation {
  turns = []; // a string is the user's, an Answer the model's

  get last() {
    return this.turns.at(-1) ?? null;
  }

  say(turn) {
    this.turns.push(turn);
  }

  clear() {
    this.turns = [];
  }

  /** Take the last answer back. */
  takeBack() {
    this.turns.pop();
  }

  /** Take back what the user said last, and all since. */
  rewind() {
    this.turns.length = this.turns.findLastIndex((turn) => typeof turn === "string");
  }

  messages(system) {
    const spoken = this.turns.flatMap((turn) =>
      typeof turn === "string" ? [{ role: "user", content: turn }] : turn.messages,
    );
    return system ? [{ role: "system", content: system }, ...spoken] : spoken;
  }
}
