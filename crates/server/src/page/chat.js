// Conversations: one card each, with its own answer under way.

import { Refusal, bytes, get, say, send, stream } from "./api.js";
import { Attachments } from "./attach.js";
import { save } from "./export.js";
import { FactList } from "./facts.js";
import { Message } from "./message.js";
import * as settings from "./settings.js";

const chats = new Map();
/** The server shows the last turns of a session, at most this many. */
const TURNS_SHOWN = 256;

const $ = (id) => document.getElementById(id);
let keeps = true;
let changed = () => {};

/** Calls back when a conversation opens, closes, gets a name, or begins or ends an answer. */
export function onChange(go) { changed = go; }

export function all() { return [...chats.values()]; }

export function isBusy() { return all().some((chat) => chat.abort); }

/** Without sessions on the server the page keeps the messages itself. */
export function setKeeps(value) { keeps = value; }

/** The question of a turn, if this page knows it. */
export function questionOf(name, number) {
  return chats.get(name)?.turns.find((turn) => turn.number === number)?.question.text;
}

function remember() {
  const names = all().filter((chat) => chat.isKept).map((chat) => chat.name);
  try { localStorage.setItem("haversack-open", JSON.stringify(names)); } catch { /* not then */ }
}

/** Names of conversations that were open when the page was last left. */
export function remembered() {
  try { return JSON.parse(localStorage.getItem("haversack-open")) ?? []; } catch { return []; }
}

/** Names of saved conversations, as the server told them last. */
let known = new Set();

export async function kept() {
  if (!keeps) return [];
  const { data } = await get("/v1/sessions");
  known = new Set(data.map((one) => one.id));
  return data;
}

const path = (name, rest = "") => `/v1/sessions/${encodeURIComponent(name)}${rest}`;

function freeName(stem) {
  const isFree = (name) => !known.has(name) && !chats.has(name);
  if (isFree(stem) && !stem.endsWith("-")) return stem;
  for (let n = 1; ; n++) {
    const name = stem.endsWith("-") ? `${stem}${n}` : `${stem}-${n + 1}`;
    if (isFree(name)) return name;
  }
}

/** What people type as a name, in the characters that a name may have. */
export function nameOf(typed) {
  const plain = typed.normalize("NFKD").replace(/\p{M}/gu, "").trim();
  const name = plain.replace(/\s+/g, "-").replace(/[^\w.-]/g, "").replace(/^[^a-zA-Z0-9]+/, "").slice(0, 64);
  if (!name) throw new Error("A name needs letters or digits: a-z, 0-9, and - _ . between them.");
  return name;
}

/** A request to a session whose last answer may still be on its way to the disk: it is repeated. */
async function settled(go) {
  for (let again = 0; ; again++) {
    try {
      return await go();
    } catch (error) {
      if (error.status !== 409 || again === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
  }
}

async function isTaken(name) {
  return chats.has(name) || (await kept()).some((one) => one.id === name);
}

/** Gives a saved conversation another name: it is copied to the new one, then deleted under the old one. */
export async function rename(name, to) {
  if (to === name) return;
  if (await isTaken(to)) throw new Error(`There is a chat named ${to} already.`);
  const chat = chats.get(name);
  if (chat?.abort) throw new Error("The chat is being answered; rename it afterwards.");
  if (!chat || (keeps && chat.isKept)) {
    await settled(() => send("POST", path(name, "/fork"), { id: to }));
    await settled(() => send("DELETE", path(name)));
  }
  chat?.setName(to);
  remember();
}

/** Deletes a saved conversation for good, and closes it. */
export async function remove(name) {
  await settled(() => send("DELETE", path(name)));
  chats.get(name)?.close();
}

/** A new conversation. It has its name for good with its first question. */
export function begin() {
  const chat = new Chat(freeName("chat-"));
  chat.text.focus();
  return chat;
}

/** Closes chats in which nothing was said or typed. */
export function closeUnused() {
  for (const chat of all()) if (chat.isUnused) chat.close();
}

/** A saved conversation. While other conversations take all memory, the request is repeated. */
async function whenThereIsRoom(name) {
  for (let again = 0; ; again += 1) {
    try {
      return await get(path(name));
    } catch (error) {
      if (error.status !== 503 || again === 10) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

/** Opens a saved conversation with its last turns. */
export async function open(name) {
  if (chats.has(name)) return chats.get(name);
  const session = await whenThereIsRoom(name);
  // Another click opened it meanwhile.
  if (chats.has(name)) return chats.get(name);
  const chat = new Chat(name);
  chat.show(session);
  remember();
  return chat;
}

/** Questions and answers of a session. A long message was read in parts, which are one question. */
function turnsOf(session) {
  const turns = [];
  let before = "";
  for (const { number, question, answer, is_state, is_part } of session.turns) {
    if (is_state) continue;
    before += question;
    if (is_part) continue;
    turns.push({ number, question: before, answer });
    before = "";
  }
  return turns;
}

class Chat {
  constructor(name) {
    this.isKept = false;
    this.abort = null;
    /** Whether the next question takes the place of the last one. */
    this.isEditing = false;
    /** `{ number, question, answer }`: what is shown, oldest first. Without a number: stopped or not saved. */
    this.turns = [];
    /** The system message, for a server without sessions. */
    this.system = [];
    this.node = $("chat").content.cloneNode(true).firstElementChild;
    const part = (css) => this.node.querySelector(css);
    this.said = part(".said");
    this.text = part(".text");
    this.sendButton = part(".send");
    this.stopButton = part(".stop");
    this.state = part(".state");
    this.opening = part(".opening");
    this.facts = new FactList(part(".known"), () => path(this.name), (words) => this.tellFailure(words));
    this.opening.addEventListener("toggle", () => this.listFacts());
    this.editing = part(".editing");
    this.problem = part(".problem");
    this.more = part(".more");
    this.nameField = part(".rename");
    this.isAtEnd = true;
    this.said.addEventListener("scroll", () => {
      this.isAtEnd = this.said.scrollHeight - this.said.scrollTop - this.said.clientHeight < 60;
    });
    new ResizeObserver(() => this.follow()).observe(this.said);
    this.attachments = new Attachments(part(".files"), (words) => this.tellFailure(words));
    part(".ask").addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.submit();
      }
    });
    this.node.addEventListener("keydown", (event) => { if (event.key === "Escape") this.escape(event); });
    this.stopButton.addEventListener("click", () => this.stop());
    part(".cancel").addEventListener("click", () => this.edit(false));
    part(".close").addEventListener("click", () => this.close());
    part(".attach").addEventListener("click", () => part(".chosen").click());
    part(".chosen").addEventListener("change", async (event) => {
      this.tellFailure("");
      await this.attachments.add([...event.target.files]);
      event.target.value = "";
      this.text.focus();
    });
    const choices = {
      ".name-it": () => this.askName(true),
      ".fork": () => this.fork(),
      ".markdown": () => this.export("markdown"),
      ".json": () => this.export("json"),
    };
    for (const [css, go] of Object.entries(choices)) {
      part(css).addEventListener("click", async () => {
        this.more.open = false;
        await Promise.resolve(go()).catch((error) => this.tellFailure(error.message));
      });
    }
    this.nameField.addEventListener("submit", (event) => { event.preventDefault(); this.takeName(); });
    part(".keep-name").addEventListener("click", () => this.askName(false));
    for (const example of this.node.querySelectorAll(".examples button")) {
      example.addEventListener("click", () => {
        this.text.value = example.textContent;
        this.text.focus();
      });
    }
    this.setName(name);
    this.set(null);
    $("chats").append(this.node);
    changed();
  }

  setName(name) {
    chats.delete(this.name);
    this.name = name;
    chats.set(name, this);
    this.node.id = `chat-${name}`;
    this.node.setAttribute("aria-label", `Chat ${name}`);
    const label = (css, words) => this.node.querySelector(css).setAttribute("aria-label", words);
    this.node.querySelector(".name").textContent = name;
    label(".said", `Messages of ${name}`);
    label(".text", `Message to ${name}`);
    label(".holds", `Facts of ${name}`);
    label(".more summary", `More for ${name}`);
    label(".close", `Close ${name}`);
    changed();
  }

  /** The turns of a saved conversation. */
  show(session) {
    this.isKept = true;
    for (const { number, question, answer } of turnsOf(session)) {
      this.add("user", question);
      this.add("assistant", answer).note(`turn ${number}`);
      this.turns.at(-1).number = number;
    }
    this.set(null);
    this.scroll();
  }

  /** A message that may grow. An answer makes a turn with the question before it. */
  add(role, text = "") {
    const message = new Message(role, text);
    message.action(...(role === "user"
      ? ["Edit", "edit", () => this.edit(true)]
      : ["Try again", "again", () => this.ask(this.turns.at(-1).question.text, true)]));
    this.said.append(message.node);
    if (role === "user") this.turns.push({ question: message });
    else this.turns.at(-1).answer = message;
    message.onDraw = () => this.follow();
    return message;
  }

  get isUnused() {
    const typed = this.text.value || this.attachments.files.length || this.opening.querySelector(".holds").value;
    return !this.isKept && !this.abort && !this.turns.length && !typed;
  }

  /** Before the first message facts are written, then they are listed. */
  setOpening() {
    const part = (css) => this.opening.querySelector(css);
    this.opening.hidden = this.isKept && !keeps;
    part(".holds").hidden = this.isKept;
    part(".finds").hidden = this.isKept || !keeps;
    part(".known").hidden = !this.isKept;
  }

  listFacts() {
    if (this.isKept && keeps && this.opening.open) this.facts.load();
  }

  scroll() {
    this.isAtEnd = true;
    this.said.scrollTop = this.said.scrollHeight;
  }

  /** Keeps the end of the conversation in view, unless people have scrolled away from it. */
  follow() { if (this.isAtEnd) this.scroll(); }

  /** Something went wrong; it is told above the field for messages until the next one is sent. */
  tellFailure(words) {
    this.problem.textContent = words;
    this.problem.hidden = !words;
  }

  set(abort) {
    this.abort = abort;
    this.said.setAttribute("aria-busy", String(Boolean(abort)));
    this.node.classList.toggle("answering", Boolean(abort));
    this.node.classList.toggle("empty", !this.turns.length && !abort);
    this.sendButton.hidden = Boolean(abort);
    this.stopButton.hidden = !abort;
    this.setOpening();
    for (const css of [".fork", ".markdown", ".json"]) {
      this.node.querySelector(css).disabled = Boolean(abort) || !this.isKept;
    }
    this.follow();
    changed();
  }

  submit() {
    const typed = this.text.value.trim();
    if (this.abort || !settings.isValid() || !(typed || this.attachments.files.length)) return;
    const instead = this.isEditing;
    const question = this.attachments.with(typed);
    this.text.value = "";
    this.edit(false);
    this.ask(question, instead);
  }

  /** Puts the last question where it can be changed, or leaves it as it is. */
  edit(isEditing) {
    if (isEditing && (this.abort || !this.turns.length)) return;
    if (isEditing) this.text.value = this.turns.at(-1).question.text;
    else if (this.isEditing) this.text.value = "";
    this.isEditing = isEditing;
    this.editing.hidden = !isEditing;
    this.sendButton.textContent = isEditing ? "Send again" : "Send";
    this.text.focus();
  }

  escape(event) {
    if (event.target.closest(".menu[open]")) return;
    if (event.target.closest(".rename")) this.askName(false);
    else if (this.abort) this.stop();
    else if (this.isEditing) this.edit(false);
  }

  request(question) {
    const holds = this.opening.querySelector(".holds").value.trim();
    if (!this.isKept && holds) this.system = [{ role: "system", content: holds }];
    const before = keeps ? [] : this.turns.slice(0, -1).flatMap((turn) => [
      { role: "user", content: turn.question.text },
      { role: "assistant", content: turn.answer.text },
    ]);
    const finds = keeps && !this.isKept && this.opening.querySelector(".auto-facts").checked;
    return {
      ...(keeps ? { session_id: this.name } : {}),
      ...(finds ? { auto_facts: true } : {}),
      messages: [...(keeps && this.isKept ? [] : this.system), ...before, { role: "user", content: question }],
      ...settings.values(),
      stream: true,
    };
  }

  /** Asks, in place of the last question if `instead`. */
  async ask(question, instead = false) {
    if (this.abort || !settings.isValid()) return;
    const abort = new AbortController();
    this.set(abort);
    this.tellFailure("");
    if (instead) {
      try {
        await this.takeBack();
      } catch (error) {
        this.set(null);
        this.text.value ||= question;
        return this.tellFailure(error.message);
      }
    }
    this.add("user", question);
    const answer = this.add("assistant");
    answer.node.classList.add("coming");
    this.scroll();
    // The button that was pressed is about to disappear; keyboard users keep their focus.
    this.text.focus();
    say("The model is answering.");
    try {
      if (!this.isKept) await this.claimName();
      const request = this.request(question);
      for await (const event of stream("/v1/chat/completions", request, abort.signal)) {
        const choice = event.choices?.[0];
        this.isKept = true;
        this.setOpening();
        if (choice?.delta?.content) answer.grow(choice.delta.content);
        if (event.context) this.end(event.context, choice, answer);
      }
      answer.draw();
      say("The answer is complete.");
    } catch (error) {
      answer.draw();
      if (abort.signal.aborted) {
        answer.note("stopped");
        say("Stopped.");
      } else {
        this.fail(error instanceof Refusal ? error.message : "The server does not respond.", answer, question);
      }
    }
    answer.node.classList.remove("coming");
    this.set(null);
    remember();
  }

  /** Takes another name where there is a saved conversation of this one, which another window began. */
  async claimName() {
    await kept();
    if (known.has(this.name)) this.setName(freeName(this.name.replace(/-\d+$/, "-")));
  }

  /** An answer that failed. Where nothing of it came, the question can be sent again. */
  fail(words, answer, question) {
    if (answer.text) {
      answer.node.classList.add("failed");
      return answer.note(words);
    }
    const { question: asked } = this.turns.pop();
    asked.remove();
    answer.remove();
    this.text.value ||= question;
    this.tellFailure(words);
  }

  end(context, choice, answer) {
    const words = [];
    if (context.turn != null) {
      this.turns.at(-1).number = context.turn;
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

  /** Deletes the last turn here and in the session, where it is if it was not stopped before its first word. */
  async takeBack() {
    const last = this.turns.at(-1);
    if (keeps && this.isKept) {
      const saved = turnsOf(await settled(() => get(path(this.name)))).at(-1);
      const known = this.turns.slice(0, -1).findLast((turn) => turn.number != null)?.number ?? -1;
      const isSaved = saved && (last.number == null ? saved.number > known : saved.number === last.number);
      if (last.number != null && !isSaved) {
        throw new Error("This chat went on in another window. Close it and open it again.");
      }
      if (isSaved) await settled(() => send("DELETE", path(this.name, "/turns/last")));
    }
    this.turns.pop();
    last.question.remove();
    last.answer.remove();
  }

  stop() { this.abort?.abort(); }

  async fork() {
    await kept().catch(() => {});
    const name = freeName(`${this.name.replace(/-fork(-\d+)?$/, "")}-fork`);
    if (keeps) {
      const session = await settled(() => send("POST", path(this.name, "/fork"), { id: name }));
      const copy = new Chat(name);
      copy.show(session);
      remember();
      return copy.text.focus();
    }
    const copy = new Chat(name);
    copy.system = this.system;
    copy.show({ turns: this.contents() });
    return copy.text.focus();
  }

  contents() {
    return this.turns.map((turn, i) => ({
      number: turn.number ?? i, question: turn.question.text, answer: turn.answer.text,
    }));
  }

  async export(kind) {
    const session = keeps ? await settled(() => get(path(this.name))) : null;
    const facts = session?.facts ?? this.system.map((message, i) => ({ number: i, text: message.content }));
    const turns = session ? turnsOf(session) : this.contents();
    const model = $("model").textContent;
    const isCut = session?.turns.length >= TURNS_SHOWN;
    save({ name: this.name, model, facts, turns, ...(isCut ? { left_off: session.turns_said - session.turns.length } : {}) }, kind);
  }

  /** Shows or hides the field for a new name. */
  askName(isAsked) {
    const field = this.nameField.querySelector("input");
    this.nameField.hidden = !isAsked;
    this.node.querySelector(".name").hidden = isAsked;
    field.value = this.name;
    if (isAsked) field.select();
    else this.more.firstElementChild.focus();
  }

  async takeName() {
    try {
      await rename(this.name, nameOf(this.nameField.querySelector("input").value));
      this.tellFailure("");
      this.askName(false);
    } catch (error) {
      this.tellFailure(error.message);
    }
  }

  close() {
    this.stop();
    const next = this.node.nextElementSibling ?? this.node.previousElementSibling;
    chats.delete(this.name);
    this.node.remove();
    remember();
    changed();
    (next?.querySelector(".text") ?? $("new")).focus();
  }

  /** Shows the state from the memory report. */
  tell(shown) {
    // A fact that was found in the background is read behind the last turn.
    if (shown && shown.position !== this.position && !this.abort) {
      this.position = shown.position;
      this.listFacts();
    }
    const words = shown ? `${shown.position} tokens · ${bytes(shown.bytes)}` : this.isKept ? "on disk" : "new";
    if (this.state.textContent !== words) this.state.textContent = words;
  }
}
