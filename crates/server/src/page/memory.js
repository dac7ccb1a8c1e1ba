// The memory report: the budget as a bar, each sequence as strips of tokens.

import { bytes, el, send } from "./api.js";
import { all, questionOf } from "./chat.js";

const $ = (id) => document.getElementById(id);

const PARTS = {
  ahead: "recoded ahead", tables: "tables", scratch: "scratch",
  side: "encoder and lists", heap: "requests and buffers", promised: "reserved", free: "free",
};

/** Places of tokens: CSS class and label. */
const PLACES = {
  f16: "f16", int8: "int8", int4: "int4", low: "int5, 3, 2", hidden: "hidden",
  disk: "on disk", ids: "ids on disk", passed: "outside the window", gone: "forgotten",
};

const RANKED_BY = { words: "by its words", encoder: "by its meaning", neighbour: "by the turn after it" };
const TURN_PLACES = { visible: "visible", hidden: "hidden", spilled: "on disk", ids: "ids on disk" };

function codecClass(codec) {
  if (codec.startsWith("f")) return "f16";
  if (codec.startsWith("int8")) return "int8";
  return codec.startsWith("int4") ? "int4" : "low";
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Updates a list of children by key, in order. */
function keep(parent, things, keyOf, make, update) {
  const before = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let at = parent.firstElementChild;
  for (const thing of things) {
    const key = String(keyOf(thing));
    let node = before.get(key);
    before.delete(key);
    if (!node) {
      node = make(thing);
      node.dataset.key = key;
    }
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
    update(node, thing);
  }
  for (const node of before.values()) node.remove();
}

export function render(memory) {
  budget(memory);
  now(memory);
  const shown = [
    ...memory.sessions.map((one) => ({ ...one, key: `s-${one.id}`, name: one.id })),
    ...memory.requests.map((one) => ({ ...one, key: `r-${one.number}`, name: `request ${one.number}` })),
  ];
  // Conversations on the page first, in its order; then by name.
  const order = new Map(all().map((chat, i) => [chat.name, i]));
  const rank = (one) => order.get(one.id) ?? order.size;
  shown.sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
  const places = new Set();
  keep($("sequences"), shown, (one) => one.key, makeSequence, (node, one) => showSequence(node, one, places));
  if (!shown.length) $("sequences").append(el("p", { class: "quiet", textContent: "No conversation is in memory. Send a message to see its tokens here." }));
  const legend = Object.keys(PLACES).filter((place) => places.has(place));
  keep($("key-of-strips"), legend, (place) => place,
    (place) => el("li", {}, el("span", { class: `swatch ${place}` }), PLACES[place]), () => {});
  for (const chat of all()) chat.tell(memory.sessions.find((one) => one.id === chat.name));
  $("device").hidden = !memory.device.changes.length;
  keep($("changes"), memory.device.changes.slice(-4).reverse(), (change) => change.what,
    () => el("li"), (node, change) => setText(node, `${change.what} (${ago(change.seconds_ago)})`));
}

function ago(seconds) {
  return seconds < 60 ? `${seconds} s ago` : `${Math.floor(seconds / 60)} min ago`;
}

function budget(memory) {
  const parts = memory.parts
    .filter((part) => part.bytes > 0)
    .map((part) => part.part === "blocks"
      ? { key: `${part.zone}-${part.codec}`, css: codecClass(part.codec), name: `${part.zone} ${part.codec}`, bytes: part.bytes }
      : { key: part.part, css: part.part, name: PARTS[part.part], bytes: part.bytes });
  const taken = parts.reduce((sum, part) => sum + part.bytes, 0);
  const ceiling = memory.budget_bytes;
  if (ceiling > taken) parts.push({ key: "free", css: "free", name: PARTS.free, bytes: ceiling - taken });
  setText($("held"), bytes(memory.held_bytes));
  setText($("budget"), ceiling ? `of ${bytes(ceiling)} · peak ${bytes(memory.peak_bytes)}` : "no limit");
  const beside = [`Not in the budget, mapped from files: weights ${bytes(memory.weights_bytes)}`];
  if (memory.file_bytes) beside.push(`shared openings ${bytes(memory.file_bytes)}`);
  const idle = memory.idle_bytes ? ` Idle conversations can give up ${bytes(memory.idle_bytes)}.` : "";
  setText($("beside"), `${beside.join(", ")}.${idle}`);
  keep($("bar"), parts, (part) => part.key, (part) => el("span", { class: part.css }), (node, part) => {
    node.style.flexGrow = part.bytes;
    node.title = `${part.name}: ${bytes(part.bytes)}`;
  });
  $("bar").setAttribute("aria-label", parts.map((part) => `${part.name} ${bytes(part.bytes)}`).join(", "));
  keep($("legend"), parts, (part) => part.key,
    (part) => el("li", {}, el("span", { class: `swatch ${part.css}` }), part.name, el("b")),
    (node, part) => setText(node.lastElementChild, bytes(part.bytes)));
}

function now(memory) {
  const { batch, device, tokens_per_second: speed } = memory;
  const facts = [
    ["answering", `${batch.active} of ${batch.most}`],
    ["waiting", `${batch.waiting} of ${batch.queue}`],
    ["tokens/s", `${speed.sampled.toFixed(speed.sampled < 10 ? 1 : 0)}`],
    ["read/s", `${speed.read.toFixed(0)}`],
    ["heat", device.thermal ?? "unknown"],
    ["throttle", device.rung ? `level ${device.rung}` : "off"],
    ["threads", `${batch.threads}`],
    ["prompt chunk", `${batch.chunk}`],
  ];
  keep($("facts"), facts, (fact) => fact[0],
    ([name]) => el("div", {}, el("dt", { textContent: name }), el("dd")),
    (node, fact) => setText(node.lastElementChild, fact[1]));
  const words = batch.active
    ? `${batch.active} answering · ${speed.sampled.toFixed(0)} tokens/s${batch.waiting ? ` · ${batch.waiting} waiting` : ""}`
    : "idle";
  setText($("now-text"), words);
  document.body.classList.toggle("busy", batch.active > 0);
}

function makeSequence(one) {
  const turns = el("details", { class: "turns" }, el("summary"), el("ol"), el("p", { class: "told", role: "status" }));
  return el("section", { class: "sequence" },
    el("h4", {}, el("span", { class: "name", textContent: one.name }),
      el("span", { class: "badge", textContent: "answering" }), el("span", { class: "meta quiet" })),
    el("div", { class: "strips" }),
    el("div", { class: "lane", "aria-hidden": "true" }),
    el("p", { class: "plan" }), turns);
}

function showSequence(node, one, places) {
  const part = (css) => node.querySelector(css);
  node.classList.toggle("active", one.is_active);
  part(".badge").hidden = !one.is_active;
  setText(part(".meta"), `${one.position} tokens · ${bytes(one.bytes)}`);
  const strips = one.strips.map((strip, i) => ({ ...strip, i }));
  keep(part(".strips"), strips, (strip) => strip.i, makeStrip, (strip, of) => showStrip(strip, of, one, places));
  const turns = one.turns ?? [];
  keep(part(".lane"), turns, (turn) => turn.number, () => el("span"), (mark, turn) => {
    mark.className = turn.place;
    mark.style.left = `${100 * turn.start / one.position}%`;
    mark.style.width = `${100 * turn.tokens / one.position}%`;
    mark.style.opacity = strength(turn);
    mark.title = turnWords(turn);
  });
  part(".lane").hidden = !turns.length;
  setText(part(".plan"), one.plan ? `Last plan: ${one.plan}.` : "");
  part(".plan").hidden = !one.plan;
  const details = part(".turns");
  details.hidden = !turns.length;
  const more = one.turns_left_off ? `, ${one.turns_left_off} more not shown` : "";
  const file = one.unsaved ? " · not saved" : one.file_bytes ? ` · file ${bytes(one.file_bytes)}` : "";
  setText(details.firstElementChild, `${turns.length} ${turns.length === 1 ? "turn" : "turns"}${more}${file}`);
  const list = details.querySelector("ol");
  if (details.open) showTurns(list, one, turns);
  else details.ontoggle = () => showTurns(list, one, turns);
}

/** A turn without a relevance counts as visible. */
function strength(turn) {
  return turn.relevance == null ? 0.75 : 0.25 + 0.75 * Math.max(0, Math.min(1, turn.relevance));
}

function turnWords(turn) {
  const by = turn.ranked_by ? ` ${RANKED_BY[turn.ranked_by]}` : "";
  const relevance = turn.relevance == null ? "relevance unknown" : `relevance ${turn.relevance.toFixed(2)}${by}`;
  return `turn ${turn.number}: ${turn.tokens} tokens, ${TURN_PLACES[turn.place]}, ${relevance}`;
}

/** What a person may ask of a turn: the word, what it means, and the request. */
function choices(turn) {
  if (turn.is_state) return [];
  const inMemory = turn.place === "visible" || turn.place === "hidden";
  const all = [
    turn.place !== "visible" && ["recall", "the next answer sees it", "POST", "recall"],
    turn.is_pinned && ["unpin", "it may leave memory again", "DELETE", "pin"],
    !turn.is_pinned && inMemory && ["pin", "every answer sees it", "POST", "pin"],
    turn.is_excluded && ["include", "answers may see it again", "DELETE", "exclude"],
    !turn.is_excluded && ["exclude", "no answer sees it", "POST", "exclude"],
  ];
  return all.filter(Boolean).map(([word, meaning, method, path]) => ({ word, meaning, method, path }));
}

function makeChoice(choice, list, one, turn) {
  const label = `${choice.word} turn ${turn.number}: ${choice.meaning}`;
  const button = el("button", { type: "button", textContent: choice.word, title: choice.meaning });
  button.setAttribute("aria-label", label);
  const said = list.parentElement.querySelector(".told");
  button.addEventListener("click", async () => {
    const path = `/v1/sessions/${encodeURIComponent(one.id)}/turns/${turn.number}/${choice.path}`;
    const told = await send(choice.method, path).then(() => `turn ${turn.number}: ${choice.meaning}`, (error) => error.message);
    setText(said, told);
  });
  return button;
}

function showTurns(list, one, turns) {
  keep(list, [...turns].reverse(), (turn) => turn.number,
    () => el("li", {},
      el("span", { class: "number" }), el("span", { class: "what" }), el("span", { class: "place" }),
      el("span", { class: "relevance" }, el("span")), el("span", { class: "value" }), el("span", { class: "choices" })),
    (node, turn) => {
      const [number, what, place, relevance, value, asked] = node.children;
      setText(number, String(turn.number));
      const said = turn.is_state ? "state" : questionOf(one.id, turn.number);
      setText(what, said ?? `${turn.tokens} tokens`);
      const kept = turn.is_pinned ? "pinned" : turn.is_excluded ? "excluded" : TURN_PLACES[turn.place];
      setText(place, kept);
      keep(asked, choices(turn), (choice) => choice.word, (choice) => makeChoice(choice, list, one, turn), () => {});
      place.className = `place ${turn.place}`;
      relevance.firstElementChild.style.width = `${100 * Math.max(0, turn.relevance ?? 0)}%`;
      setText(value, turn.relevance == null ? "–" : turn.relevance.toFixed(2));
      node.title = turnWords(turn);
    });
}

function makeStrip() {
  return el("figure", { class: "strip" }, el("div", { class: "cells", role: "img" }), el("figcaption"));
}

function showStrip(node, strip, one, places) {
  const [cells, caption] = node.children;
  const place = (lies) => lies in strip.codecs ? codecClass(strip.codecs[lies]) : lies;
  const name = (lies) => lies in strip.codecs ? strip.codecs[lies] : PLACES[lies];
  strip.runs.forEach(([, lies]) => places.add(place(lies)));
  const runs = strip.runs.map(([tokens, lies], i) => ({ tokens, lies, i }));
  keep(cells, runs, (run) => run.i, () => el("span"), (cell, run) => {
    cell.className = place(run.lies);
    cell.style.flexGrow = run.tokens;
  });
  const counts = Object.entries(strip.tokens).map(([lies, tokens]) => `${tokens} ${name(lies)}`);
  cells.setAttribute("aria-label", `${one.name}, ${one.position} tokens: ${counts.join(", ")}`);
  const layers = strip.layers.map(([a, b]) => a === b ? `${a}` : `${a}–${b}`);
  const which = layers.length > 4 ? `${layers.slice(0, 3).join(", ")}, …` : layers.join(", ");
  const window = strip.window ? `, window ${strip.window}` : "";
  setText(caption, `layers ${which}${window}: ${counts.join(", ")}`);
}
