// The page: shows conversations and memory, and polls the server a few times a second.

import { bytes, el, get, setKey } from "./api.js";
import { render } from "./memory.js";
import * as talks from "./talk.js";

const $ = (id) => document.getElementById(id);

/** Milliseconds between two polls: while an answer is computed, and while the server is idle. */
const BUSY_MS = 250;
const IDLE_MS = 1000;

let view = null;
let isLocked = false;

// A narrow screen shows one view at a time.
function showViews() {
  const open = talks.all();
  const names = [...open.map((talk) => talk.name), "Memory"];
  if (!names.includes(view)) view = open.at(-1)?.name ?? "Memory";
  const buttons = names.map((name) => {
    const button = el("button", { type: "button", textContent: name });
    if (name === view) button.setAttribute("aria-current", "true");
    if (open.find((talk) => talk.name === name)?.abort) button.classList.add("answering");
    button.addEventListener("click", () => { choose(name); });
    return button;
  });
  const had = [...$("views").children].indexOf(document.activeElement);
  $("views").replaceChildren(...buttons);
  if (had >= 0) $("views").children[Math.min(had, buttons.length - 1)].focus();
  for (const talk of open) talk.node.classList.toggle("current", talk.name === view);
  $("memory").classList.toggle("current", view === "Memory");
  $("talks").classList.toggle("empty", !open.length);
}

function choose(name) {
  view = name;
  showViews();
}

async function showShelf() {
  const kept = await talks.kept().catch(() => []);
  $("shelf-empty").hidden = kept.length > 0;
  $("shelf-list").replaceChildren(...kept.map((one) => {
    const where = one.is_open ? "in memory" : "on disk";
    const button = el("button", { type: "button" },
      el("span", { textContent: one.id }),
      el("span", { class: "quiet", textContent: `${where} · ${bytes(one.file_bytes)}` }));
    button.addEventListener("click", async () => {
      $("shelf").open = false;
      try {
        const talk = await talks.open(one.id);
        choose(talk.name);
        talk.text.focus();
      } catch (error) {
        banner(error.message);
      }
    });
    return el("li", {}, button);
  }));
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
      if (memory.batch.active || talks.isBusy()) pause = BUSY_MS;
    } catch (error) {
      if (error.status !== 401) banner("The server does not respond.");
    }
  }
  setTimeout(look, pause);
}

async function start() {
  const memory = await get("/v1/memory");
  isLocked = false;
  $("auth").hidden = true;
  $("model").textContent = memory.model;
  talks.setKeeps(memory.keeps_sessions);
  $("shelf").hidden = !memory.keeps_sessions;
  const kept = new Set((await talks.kept()).map((one) => one.id));
  for (const name of talks.remembered().filter((name) => kept.has(name))) {
    await talks.open(name).catch(() => {});
  }
  if (!talks.all().length) await talks.begin();
  document.body.classList.add("ready");
}

talks.onChange(showViews);
$("new").addEventListener("click", async () => choose((await talks.begin()).name));
$("talks").addEventListener("focusin", (event) => {
  const talk = talks.all().find((one) => one.node.contains(event.target));
  if (talk && talk.name !== view) choose(talk.name);
});
$("shelf").addEventListener("toggle", () => { if ($("shelf").open) showShelf(); });
// A click elsewhere closes a menu.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
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
