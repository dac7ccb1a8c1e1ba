// The page: shows conversations and memory, and polls the server a few times a second.

import { el, get, setKey } from "./api.js";
import * as chats from "./chat.js";
import { render } from "./memory.js";
import * as saved from "./saved.js";
import * as settings from "./settings.js";

const $ = (id) => document.getElementById(id);

/** Milliseconds between two polls: while an answer is computed, and while the server is idle. */
const BUSY_MS = 250;
const IDLE_MS = 1000;

/** The chat that a narrow screen shows; `null`: the memory. */
let view = null;
let isLocked = false;

// A narrow screen shows one view at a time.
function showViews() {
  const open = chats.all();
  if (view && !open.includes(view)) view = open.at(-1) ?? null;
  const button = (of, name) => {
    const button = el("button", { type: "button", textContent: name });
    if (of === view) button.setAttribute("aria-current", "true");
    if (of?.abort) button.classList.add("answering");
    button.addEventListener("click", () => choose(of));
    return button;
  };
  const buttons = [...open.map((chat) => button(chat, chat.name)), button(null, "Memory")];
  const had = [...$("views").children].indexOf(document.activeElement);
  $("views").replaceChildren(...buttons);
  $("views").querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "nearest" });
  if (had >= 0) $("views").children[Math.min(had, buttons.length - 1)].focus();
  for (const chat of open) chat.node.classList.toggle("current", chat === view);
  $("memory").classList.toggle("current", !view);
  $("chats").classList.toggle("none", !open.length);
}

function choose(chat) {
  view = chat;
  showViews();
}

function banner(text) {
  const node = $("banner");
  // Screen readers read a change only.
  if (node.textContent !== text) node.textContent = text;
  node.hidden = !text;
}

async function look() {
  let pause = IDLE_MS;
  if (!document.hidden && !isLocked) {
    try {
      const memory = await get("/v1/memory");
      render(memory);
      banner(memory.alerts.map((alert) => `${alert.name}: ${alert.words}`).join(" · "));
      if (memory.batch.active || chats.isBusy()) pause = BUSY_MS;
    } catch (error) {
      if (error.status !== 401) banner("The server does not respond.");
    }
  }
  setTimeout(look, pause);
}

async function start() {
  const [memory, models] = await Promise.all([get("/v1/memory"), get("/v1/models")]);
  isLocked = false;
  $("auth").hidden = true;
  $("model").textContent = memory.model;
  settings.begin(models.data[0].sampling);
  chats.setKeeps(memory.keeps_sessions);
  $("saved").hidden = !memory.keeps_sessions;
  const kept = new Set((await chats.kept()).map((one) => one.id));
  for (const name of chats.remembered().filter((name) => kept.has(name))) {
    await chats.open(name).catch(() => {});
  }
  choose(chats.all().at(-1) ?? chats.begin());
  document.body.classList.add("ready");
}

chats.onChange(showViews);
saved.begin((chat) => {
  choose(chat);
  chat.text.focus();
});
$("new").addEventListener("click", () => choose(chats.begin()));
$("chats").addEventListener("focusin", (event) => {
  const chat = chats.all().find((one) => one.node.contains(event.target));
  if (chat && chat !== view) choose(chat);
});
// A click elsewhere closes a menu.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    // What was clicked may be gone by now.
    if (!event.composedPath().includes(menu)) menu.open = false;
  }
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && document.activeElement?.closest(".menu[open]");
  if (menu) {
    menu.open = false;
    menu.firstElementChild.focus();
  }
});
document.addEventListener("locked", () => {
  isLocked = true;
  $("auth").hidden = false;
  $("now-text").textContent = "locked";
  $("key").focus();
});
$("auth").addEventListener("submit", async (event) => {
  event.preventDefault();
  setKey($("key").value);
  $("key").value = "";
  await start().catch((error) => banner(error.message));
});

start().catch((error) => { if (error.status !== 401) banner("The server does not respond."); }).then(look);
