// Facts of a saved conversation: listed, changed, deleted.

import { el, get, send } from "./api.js";

export class FactList {
  /** `path` gives the address of the session, `fail` shows what went wrong. */
  constructor(list, path, fail) {
    this.list = list;
    this.path = path;
    this.fail = fail;
  }

  /** Asks the server again, unless a fact is being changed. */
  async load() {
    if (this.list.querySelector("input")) return;
    try {
      const { facts } = await get(this.path());
      const shown = facts.filter((fact) => fact.text);
      this.list.replaceChildren(...shown.map((fact) => this.row(fact)));
      if (!shown.length) this.list.append(el("li", { class: "quiet", textContent: "There are none." }));
    } catch (error) {
      this.fail(error.message);
    }
  }

  row(fact) {
    const from = fact.found_in == null ? "" : ` (turn ${fact.found_in})`;
    const row = el("li", {}, el("span", { textContent: fact.text }), el("span", { class: "quiet", textContent: from }));
    // What the conversation began with stays.
    if (!fact.number) return row;
    const button = (words, go) => {
      const node = el("button", { type: "button", class: `quiet-button ${words.toLowerCase()}`, textContent: words });
      node.setAttribute("aria-label", `${words} fact ${fact.number}`);
      node.addEventListener("click", go);
      row.append(node);
    };
    button("Edit", () => this.edit(row, fact));
    button("Delete", () => this.change(row, () => send("DELETE", `${this.path()}/facts/${fact.number}`)));
    return row;
  }

  edit(row, fact) {
    const field = el("input", { value: fact.text });
    field.setAttribute("aria-label", `Fact ${fact.number}`);
    const { found_in } = fact;
    const told = () => ({ text: field.value.trim(), supersedes: fact.number, ...(found_in == null ? {} : { found_in }) });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      const isSame = event.key === "Escape" || !field.value.trim() || field.value.trim() === fact.text;
      this.change(row, () => (isSame ? null : send("POST", `${this.path()}/facts`, told())));
    });
    row.replaceChildren(field);
    field.focus();
  }

  async change(row, go) {
    try {
      await go();
      this.fail("");
    } catch (error) {
      this.fail(error.message);
    }
    row.remove();
    await this.load();
  }
}
