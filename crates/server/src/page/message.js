// A question or an answer, as it is shown.

import { say, el } from "./api.js";
import { unfold } from "./attach.js";
import { draw } from "./markdown.js";

/** A growing answer takes at most this share of the time to draw. */
const DRAW_SHARE = 0.1;

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that are not at this machine and not encrypted have no clipboard, but can copy what is selected.
    const field = el("textarea", { value: text, class: "who" });
    const focused = document.activeElement;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focused?.focus();
    if (!done) throw new Error("The browser did not copy.");
  }
}

async function copyWith(button, text) {
  let told = "Copied";
  await copy(text).catch(() => { told = "Not copied"; });
  button.textContent = told;
  say(told);
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

export class Message {
  constructor(role, text = "") {
    this.role = role;
    this.text = text;
    this.words = el("div", { class: "words" });
    this.actions = el("div", { class: "actions" });
    this.node = el("div", { class: `message ${role}` },
      el("span", { class: "who", textContent: role === "user" ? "You:" : "Answer:" }), this.words, this.actions);
    this.action("Copy", "copy", (button) => copyWith(button, this.text));
    this.words.addEventListener("click", (event) => {
      const button = event.target.closest(".copy-code");
      if (button) copyWith(button, button.closest(".code").querySelector("code").textContent);
    });
    this.timer = null;
    this.drawMs = 0;
    this.onDraw = () => {};
    if (text) this.draw();
  }

  action(label, name, go) {
    const button = el("button", { type: "button", class: name, textContent: label });
    button.addEventListener("click", () => go(button));
    this.actions.append(button);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = null;
    const began = performance.now();
    if (this.role === "user") this.words.replaceChildren(...unfold(this.text));
    else draw(this.text, this.words);
    this.drawMs = performance.now() - began;
    this.onDraw();
  }

  grow(more) {
    this.text += more;
    this.timer ??= setTimeout(() => this.draw(), Math.max(30, this.drawMs / DRAW_SHARE));
  }

  note(words) {
    this.actions.before(el("p", { class: "note", textContent: words }));
    this.onDraw();
  }

  remove() {
    clearTimeout(this.timer);
    this.node.remove();
  }
}
