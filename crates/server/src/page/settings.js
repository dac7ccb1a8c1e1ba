// How answers are sampled. A field that is empty leaves its value to the server, which knows what suits the model.

const FIELDS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"];
const PLACE = "haversack-settings";
const $ = (id) => document.getElementById(id);

function load() {
  try { return JSON.parse(localStorage.getItem(PLACE)) ?? {}; } catch { return {}; }
}

function save() {
  const values = Object.fromEntries(FIELDS.map((name) => [name, $(name).value]));
  values.goes_on = !$("stop_repetition").checked;
  try { localStorage.setItem(PLACE, JSON.stringify(values)); } catch { /* for this page only */ }
}

function fill(values) {
  for (const name of FIELDS) $(name).value = values[name] ?? "";
  $("stop_repetition").checked = !values.goes_on;
}

/** `suits`: what the server samples with where a request leaves it out. */
export function begin(suits = {}) {
  for (const name of FIELDS) if (suits[name] != null) $(name).placeholder = String(suits[name]);
  fill(load());
  $("sampling").addEventListener("input", save);
  $("usual").addEventListener("click", () => { fill({}); save(); });
}

/** Whether all fields hold what the server accepts; the browser says which does not. */
export function isValid() {
  const bad = FIELDS.map($).find((field) => !field.checkValidity());
  // The click that asked closes menus.
  if (bad) {
    setTimeout(() => {
      $("settings").open = true;
      bad.reportValidity();
    });
  }
  return !bad;
}

/** What a request says. */
export function values() {
  const set = FIELDS.filter((name) => $(name).value !== "");
  const values = Object.fromEntries(set.map((name) => [name, Number($(name).value)]));
  return $("stop_repetition").checked ? values : { ...values, stop_repetition: false };
}
