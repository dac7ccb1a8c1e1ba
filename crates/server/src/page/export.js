// A conversation as a file: Markdown to read, JSON to work with.

import { el } from "./api.js";

function markdown({ name, facts, turns, left_off }) {
  const parts = [`# Session ${name}`];
  facts.filter((fact) => fact.text).forEach((fact) => parts.push(`## Fact ${fact.number}`, fact.text.trimEnd()));
  if (left_off) parts.push(`> ${left_off} earlier turns are left off.`);
  for (const turn of turns) {
    parts.push(`## Turn ${turn.number}`, "**User**", turn.question, "**Assistant**", turn.answer);
  }
  return `${parts.join("\n\n")}\n`;
}

/** Has the browser save `{ name, model, facts, turns, left_off }`. */
export function save(conversation, kind) {
  const text = kind === "json" ? `${JSON.stringify(conversation, null, 2)}\n` : markdown(conversation);
  const type = kind === "json" ? "application/json" : "text/markdown";
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: `${conversation.name}.${kind === "json" ? "json" : "md"}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
