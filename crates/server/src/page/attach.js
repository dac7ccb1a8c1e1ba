// Text files in front of a question: chosen, checked, and folded where the question is shown.

import { bytes, el } from "./api.js";

/** Of all files of a question together. */
const BYTES_MAX = 1 << 20;

/** The text of a file; fails with what is wrong with it. */
async function read(file, before) {
  if (before + file.size > BYTES_MAX) {
    throw new Error(`${file.name} is too large: files of a message may have ${bytes(BYTES_MAX)} together.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not a text file.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  if (!text.trim()) throw new Error(`${file.name} is empty.`);
  return text;
}

/** A file in a question. The fence is longer than any in the text. */
function folded({ name, text }) {
  const runs = text.match(/`+/g) ?? [];
  const fence = "`".repeat(runs.reduce((most, run) => Math.max(most, run.length), 2) + 1);
  const label = name.match(/\.([A-Za-z0-9]+)$/)?.[1] ?? "";
  return `File ${name}:\n\n${fence}${label}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}\n\n`;
}

/** A question as elements: each file can be unfolded. */
export function unfold(question) {
  const nodes = [];
  let rest = question;
  for (;;) {
    const head = rest.match(/^File ([^\n]+):\n\n(`{3,})[^\n`]*\n/);
    const end = head ? rest.indexOf(`\n${head[2]}\n`, head[0].length - 1) : -1;
    if (end < 0) break;
    const text = rest.slice(head[0].length, end);
    nodes.push(el("details", { class: "file" },
      el("summary", { textContent: head[1] }), el("pre", { tabIndex: 0, textContent: text })));
    rest = rest.slice(end + head[2].length + 2).replace(/^\n/, "");
  }
  if (rest) nodes.push(el("p", { class: "plain", textContent: rest }));
  return nodes;
}

/** The files that wait for the next question of a chat. */
export class Attachments {
  constructor(list, tell) {
    this.list = list;
    this.tell = tell;
    this.files = [];
  }

  async add(chosen) {
    for (const file of chosen) {
      try {
        const before = this.files.reduce((sum, one) => sum + one.size, 0);
        this.files.push({ name: file.name.replace(/\s+/g, " "), size: file.size, text: await read(file, before) });
      } catch (error) {
        this.tell(error.message);
      }
    }
    this.show();
  }

  show() {
    this.list.replaceChildren(...this.files.map((file) => {
      const remove = el("button", { type: "button", class: "icon", textContent: "×", "aria-label": `Remove ${file.name}` });
      remove.addEventListener("click", () => {
        this.files = this.files.filter((one) => one !== file);
        this.show();
      });
      return el("li", {}, `${file.name} · ${bytes(file.size)}`, remove);
    }));
    this.list.hidden = !this.files.length;
  }

  /** The question with the files before it. They are attached no more. */
  with(question) {
    const whole = this.files.map(folded).join("") + question;
    this.files = [];
    this.show();
    return whole;
  }
}
