// Conversations: one card each, with its own answer under way.

import { Refusal, bytes, el, get, send, stream } from "./api.js";

const talks = new Map();
const $ = (id) => document.getElementById(id);
let keeps = true;
let changed = () => {};

/** Calls back when a conversation opens, closes, or begins or ends an answer. */
export function onChange(go) { changed = go; }

export function all() { return [...talks.values()]; }

export function isBusy() { return all().some((talk) => talk.abort); }

/** Without sessions on the server the page keeps the messages itself. */
export function setKeeps(value) { keeps = value; }

/** The question of a turn, if this page knows it. */
export function questionOf(name, turn) { return talks.get(name)?.questions.get(turn); }

function remember() {
  const names = all().filter((talk) => talk.isKept).map((talk) => talk.name);
  try { localStorage.setItem("haversack-open", JSON.stringify(names)); } catch { /* not then */ }
}

/** Names of conversations that were open when the page was last left. */
export function remembered() {
  try { return JSON.parse(localStorage.getItem("haversack-open")) ?? []; } catch { return []; }
}

export async function kept() {
  if (!keeps) return [];
  return (await get("/v1/sessions")).data;
}

async function freeName(stem) {
  const taken = new Set((await kept().catch(() => [])).map((one) => one.id));
  const isFree = (name) => !taken.has(name) && !talks.has(name);
  if (isFree(stem) && !stem.endsWith("-")) return stem;
  for (let n = 1; ; n++) {
    const name = stem.endsWith("-") ? `${stem}${n}` : `${stem}-${n + 1}`;
    if (isFree(name)) return name;
  }
}

/** A new conversation. */
export async function begin() {
  const talk = new Talk(await freeName("talk-"));
  talk.text.focus();
  return talk;
}

/** A saved conversation. While other conversations take all memory, the request is repeated. */
async function whenThereIsRoom(name) {
  for (let again = 0; ; again += 1) {
    try {
      return await get(`/v1/sessions/${encodeURIComponent(name)}`);
    } catch (error) {
      if (error.status !== 503 || again === 10) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

/** Opens a saved conversation with its last turns. */
export async function open(name) {
  if (talks.has(name)) return talks.get(name);
  const session = await whenThereIsRoom(name);
  // Another click opened it meanwhile.
  if (talks.has(name)) return talks.get(name);
  const talk = new Talk(name);
  talk.show(session);
  remember();
  return talk;
}

class Talk {
  constructor(name) {
    this.name = name;
    this.isKept = false;
    this.abort = null;
    /** By turn. */
    this.questions = new Map();
    /** All messages, for a server without sessions. */
    this.messages = [];
    this.node = $("talk").content.cloneNode(true).firstElementChild;
    const part = (css) => this.node.querySelector(css);
    this.said = part(".said");
    this.text = part(".text");
    this.sendButton = part(".send");
    this.stopButton = part(".stop");
    this.forkButton = part(".fork");
    this.state = part(".state");
    this.opening = part(".opening");
    this.node.id = `talk-${name}`;
    this.node.setAttribute("aria-label", `Conversation ${name}`);
    part(".name").textContent = name;
    this.said.setAttribute("aria-label", `Messages of ${name}`);
    this.text.setAttribute("aria-label", `Message to ${name}`);
    part(".holds").setAttribute("aria-label", `Facts of ${name}`);
    part(".close").setAttribute("aria-label", `Close ${name}`);
    this.forkButton.setAttribute("aria-label", `Fork ${name}`);
    this.forkButton.disabled = true;
    part(".ask").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.ask();
      }
    });
    this.node.addEventListener("keydown", (event) => { if (event.key === "Escape") this.stop(); });
    this.stopButton.addEventListener("click", () => this.stop());
    this.forkButton.addEventListener("click", () => this.fork());
    part(".close").addEventListener("click", () => this.close());
    talks.set(name, this);
    $("talks").append(this.node);
    changed();
  }

  /** The turns of a saved conversation. */
  show(session) {
    this.isKept = true;
    this.opening.hidden = true;
    this.forkButton.disabled = false;
    for (const turn of session.turns.filter((turn) => !turn.is_state)) {
      this.questions.set(turn.number, turn.question);
      this.add("user", turn.question);
      this.add("assistant", turn.answer).note(`turn ${turn.number}`);
    }
  }

  /** A message that may grow. */
  add(role, text) {
    const words = el("p", { class: "words", textContent: text });
    const who = el("span", { class: "who", textContent: role === "user" ? "You" : "Model" });
    const node = el("div", { class: `message ${role}` }, who, words);
    this.said.append(node);
    this.said.scrollTop = this.said.scrollHeight;
    return {
      node,
      grow: (more) => {
        const follows = this.said.scrollHeight - this.said.scrollTop - this.said.clientHeight < 60;
        words.textContent += more;
        if (follows) this.said.scrollTop = this.said.scrollHeight;
      },
      note: (note) => node.append(el("p", { class: "note", textContent: note })),
      text: () => words.textContent,
    };
  }

  set(abort) {
    this.abort = abort;
    this.said.setAttribute("aria-busy", String(Boolean(abort)));
    this.node.classList.toggle("answering", Boolean(abort));
    this.sendButton.hidden = Boolean(abort);
    this.stopButton.hidden = !abort;
    this.forkButton.disabled = Boolean(abort) || !this.isKept;
    changed();
  }

  request(question) {
    const holds = this.opening.querySelector(".holds").value.trim();
    const opening = !this.isKept && holds ? [{ role: "system", content: holds }] : [];
    const asked = { role: "user", content: question };
    if (!keeps) {
      if (!this.messages.length) this.messages.push(...opening);
      this.messages.push(asked);
    }
    return {
      ...(keeps ? { session_id: this.name } : {}),
      messages: keeps ? [...opening, asked] : this.messages,
      // Without one the server uses what suits the model.
      ...($("temperature").value ? { temperature: Number($("temperature").value) } : {}),
      max_tokens: Number($("tokens").value),
      stream: true,
    };
  }

  async ask() {
    const question = this.text.value.trim();
    if (!question || this.abort) return;
    this.text.value = "";
    const asked = this.add("user", question);
    const answer = this.add("assistant", "");
    answer.node.classList.add("coming");
    // The send button is about to disappear; keyboard users keep their focus.
    this.text.focus();
    const request = this.request(question);
    const abort = new AbortController();
    this.set(abort);
    try {
      for await (const event of stream("/v1/chat/completions", request, abort.signal)) {
        const choice = event.choices?.[0];
        this.isKept = true;
        this.opening.hidden = true;
        if (choice?.delta?.content) answer.grow(choice.delta.content);
        if (event.context) this.end(event.context, choice, question, answer);
      }
    } catch (error) {
      if (abort.signal.aborted) {
        answer.note("stopped");
      } else {
        answer.node.classList.add("failed");
        answer.note(error instanceof Refusal ? error.message : "The server does not respond.");
        // The message can be sent again.
        if (!answer.text() && !this.text.value) { this.text.value = question; asked.node.remove(); }
      }
    }
    answer.node.classList.remove("coming");
    if (!keeps) this.messages.push({ role: "assistant", content: answer.text() });
    this.set(null);
    remember();
  }

  end(context, choice, question, answer) {
    const words = [];
    if (context.turn != null) {
      this.questions.set(context.turn, question);
      words.push(`turn ${context.turn}`);
    }
    words.push(`${context.kept} tokens seen`);
    if (context.masked) words.push(`${context.masked} hidden`);
    if (context.spilled) words.push(`${context.spilled} on disk`);
    if (context.condensed) words.push(`persistent text condensed: ${context.condensed}`);
    if (context.plan && context.plan !== "nothing changes") words.push(context.plan);
    if (choice?.finish_reason === "length") words.push("stopped at the maximum length");
    if (choice?.stopped_by === "repetition") words.push("stopped because it repeated itself");
    if (context.unsaved) words.push(`not saved: ${context.unsaved}`);
    answer.note(words.join(" · "));
  }

  stop() { this.abort?.abort(); }

  async fork() {
    const name = await freeName(`${this.name.replace(/-fork(-\d+)?$/, "")}-fork`);
    if (!keeps) {
      const copy = new Talk(name);
      copy.messages = [...this.messages];
      copy.isKept = true;
      copy.said.append(...[...this.said.childNodes].map((node) => node.cloneNode(true)));
      copy.set(null);
      return copy.text.focus();
    }
    // A turn that was just stopped is still being saved.
    for (let tries = 0; ; tries++) {
      try {
        const path = `/v1/sessions/${encodeURIComponent(this.name)}/fork`;
        const session = await send("POST", path, { id: name });
        const copy = new Talk(name);
        copy.show(session);
        remember();
        changed();
        return copy.text.focus();
      } catch (error) {
        if (error.status === 409 && tries < 20) {
          await new Promise((go) => setTimeout(go, 150));
          continue;
        }
        return this.add("assistant", "").note(error.message);
      }
    }
  }

  close() {
    this.stop();
    const next = this.node.nextElementSibling ?? this.node.previousElementSibling;
    talks.delete(this.name);
    this.node.remove();
    remember();
    changed();
    (next?.querySelector(".text") ?? $("new")).focus();
  }

  /** Shows the state from the memory report. */
  tell(shown) {
    const words = shown ? `${shown.position} tokens · ${bytes(shown.bytes)}` : this.isKept ? "on disk" : "new";
    if (this.state.textContent !== words) this.state.textContent = words;
  }
}
