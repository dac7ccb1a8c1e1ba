// The saved chats: found by name and by the words in them, opened, renamed, deleted.

import { bytes, el, get, say, send } from "./api.js";
import * as chats from "./chat.js";

const $ = (id) => document.getElementById(id);

/** Between the last key and the search. */
const PAUSE_MS = 250;

const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
let opened = () => {};
let shown = 0;

function tell(words) {
  $("saved-told").textContent = words;
  say(words);
}

/** A button that deletes a chat when it is pressed a second time. */
function deleting(name, go) {
  const button = el("button", { type: "button", class: "quiet-button" });
  let isAsked = false;
  const ask = (value) => {
    isAsked = value;
    button.textContent = value ? "Delete for good?" : "Delete";
    button.setAttribute("aria-label", value ? `Delete ${name} for good?` : `Delete ${name}`);
    if (value) say(`Press again to delete ${name} for good.`);
  };
  button.addEventListener("click", () => { if (isAsked) go(); else ask(true); });
  button.addEventListener("blur", () => ask(false));
  ask(false);
  return button;
}

function item(one) {
  const where = one.is_open ? "in memory" : "on disk";
  const open = el("button", { type: "button", class: "open" },
    el("span", { class: "name", textContent: one.id }),
    el("span", { class: "quiet small", textContent: `${when.format(one.saved_ms)} · ${bytes(one.file_bytes)} · ${where}` }),
    ...(one.match ? [el("span", { class: "found small", textContent: one.match.text })] : []));
  const node = el("li", {}, open);
  open.addEventListener("click", async () => {
    try {
      const chat = await chats.open(one.id);
      chats.closeUnused();
      $("saved").open = false;
      opened(chat);
    } catch (error) {
      tell(error.message);
    }
  });
  const rename = el("button", { type: "button", class: "quiet-button", textContent: "Rename", "aria-label": `Rename ${one.id}` });
  rename.addEventListener("click", () => node.replaceChildren(naming(one)));
  const remove = deleting(one.id, async () => {
    await chats.remove(one.id).catch((error) => tell(error.message));
    await show();
    $("search").focus();
  });
  node.append(el("div", { class: "choices" }, rename, remove));
  return node;
}

function naming(one) {
  const field = el("input", { value: one.id, maxLength: 64, "aria-label": `New name of ${one.id}` });
  const cancel = el("button", { type: "button", textContent: "Cancel" });
  const form = el("form", { class: "rename" }, field, el("button", { class: "primary", textContent: "Save" }), cancel);
  cancel.addEventListener("click", () => show());
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    show();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const name = chats.nameOf(field.value);
      await chats.rename(one.id, name);
      await show();
      $("search").focus();
      tell(`${one.id} is now ${name}.`);
    } catch (error) {
      tell(error.message);
    }
  });
  queueMicrotask(() => field.select());
  return form;
}

/** Shows what matches the search; with an empty one, everything, the latest first. */
async function show() {
  const mine = ++shown;
  const words = $("search").value.trim();
  try {
    const list = await (words ? send("POST", "/v1/search", { words }) : get("/v1/sessions"));
    // A later search was faster.
    if (mine !== shown) return;
    const found = list.data.sort((a, b) => b.saved_ms - a.saved_ms);
    const none = words ? "No saved chat has these words." : "No saved chats yet. Send a message to start one.";
    const count = found.length ? `${found.length} ${found.length === 1 ? "chat" : "chats"}` : none;
    const skipped = (list.skipped ?? []).map((one) => `${one.id} was not searched: ${one.reason}`);
    tell([count, ...skipped].join(" · "));
    $("saved-list").replaceChildren(...found.map(item));
  } catch (error) {
    tell(error.message);
  }
}

/** Calls back with a chat that was opened. */
export function begin(go) {
  opened = go;
  let timer = null;
  $("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, PAUSE_MS);
  });
  $("saved").addEventListener("toggle", () => {
    if (!$("saved").open) return;
    show();
    $("search").focus();
  });
}
