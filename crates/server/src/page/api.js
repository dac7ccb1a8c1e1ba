// Requests to the server: JSON documents, and streams of events.

let key = null;
try { key = sessionStorage.getItem("haversack-key"); } catch { /* storage is off: for this page only */ }

export function setKey(value) {
  key = value;
  try { sessionStorage.setItem("haversack-key", value); } catch { /* storage is off */ }
}

/** An error response: its status and message. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method, headers, signal,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new CustomEvent("locked"));
  const told = await response.json().catch(() => null);
  throw new Refusal(response.status, told?.error?.message ?? response.statusText);
}

export async function get(path) {
  return (await ask("GET", path)).json();
}

export async function send(method, path, body) {
  return (await ask(method, path, body)).json();
}

/** The events of a stream, until it ends or `signal` aborts it. */
export async function* stream(path, body, signal) {
  const response = await ask("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Refusal(500, event.error.message);
      yield event;
    }
  }
}

/** An element with properties and children. Strings become text, never markup. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Tells a screen reader what happened. */
export function say(words) { document.getElementById("told").textContent = words; }

export function bytes(n) {
  if (n < 1024) return `${n} B`;
  if (n < 1 << 20) return `${(n / 1024).toFixed(n < 10240 ? 1 : 0)} KiB`;
  if (n < 1 << 30) return `${(n / (1 << 20)).toFixed(n < 100 << 20 ? 1 : 0)} MiB`;
  return `${(n / (1 << 30)).toFixed(2)} GiB`;
}
