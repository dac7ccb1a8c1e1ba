// Markdown of an answer as elements. An answer is not trusted: nothing in it is markup, loads anything, or leads anywhere
// but to http, https and mail addresses. What would take long to lay out stays as it was written.

import "./markdown-it.js";
import { el } from "./api.js";

/** A longer text is shown as it was written, and so is one that makes more tokens than this. */
const LENGTH_MAX = 1 << 16;
const TOKENS_MAX = 20000;
/** Quotes and lists inside each other. What is deeper is not drawn. */
const NESTING_MAX = 40;

const parser = globalThis.markdownit({ html: false, breaks: true, maxNesting: NESTING_MAX });

/** Elements that are made; `h1` and `h2` are the page's own. */
const TAGS = {
  p: "p", blockquote: "blockquote", ul: "ul", ol: "ol", li: "li", strong: "strong", em: "em", s: "s",
  table: "table", thead: "thead", tbody: "tbody", tr: "tr", th: "th", td: "td",
  h1: "h3", h2: "h4", h3: "h5", h4: "h6", h5: "h6", h6: "h6",
};

/** The address of a link; `null` where it is not one that people may follow. */
function address(href) {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(href) {
  const to = address(href);
  return to
    ? el("a", { href: to, target: "_blank", rel: "noopener noreferrer nofollow", title: to })
    : el("span", { class: "no-link" });
}

function codeBlock(token) {
  const language = token.info.trim().split(/\s+/)[0].slice(0, 32);
  const copy = el("button", { type: "button", class: "copy-code", textContent: "Copy", "aria-label": `Copy code${language && `, ${language}`}` });
  return el("div", { class: "code" },
    el("div", { class: "code-head" }, el("span", { textContent: language || "code" }), copy),
    el("pre", { tabIndex: 0 }, el("code", { textContent: token.content })));
}

function opened(token) {
  if (token.type === "link_open") return link(token.attrGet("href"));
  const node = el(TAGS[token.tag] ?? "span");
  const align = token.attrGet("style")?.match(/center|right/)?.[0];
  if (align) node.classList.add(align);
  if (token.tag === "ol" && token.attrGet("start")) node.start = Number(token.attrGet("start"));
  return node;
}

function leaf(token) {
  switch (token.type) {
    case "fence": case "code_block": return codeBlock(token);
    case "code_inline": return el("code", { textContent: token.content });
    case "softbreak": case "hardbreak": return el("br");
    case "hr": return el("hr");
    // Pictures are not loaded.
    case "image": {
      const node = link(token.attrGet("src"));
      node.append(`Image: ${token.content || token.attrGet("src")}`);
      return node;
    }
    default: return document.createTextNode(token.content);
  }
}

/** Appends tokens to a node, without recursion over their nesting. */
function build(tokens, into) {
  const stack = [into];
  for (const token of tokens) {
    const top = stack.at(-1);
    if (token.type === "inline") {
      build(token.children, top);
    } else if (token.nesting < 0) {
      if (!token.hidden) stack.pop();
    } else if (token.nesting > 0) {
      // Paragraphs of a tight list.
      if (token.hidden) continue;
      const node = opened(token);
      top.append(token.tag === "table" ? el("div", { class: "table", tabIndex: 0 }, node) : node);
      stack.push(node);
    } else {
      top.append(leaf(token));
    }
  }
}

function count(tokens) {
  return tokens.reduce((sum, token) => sum + 1 + (token.children?.length ?? 0), 0);
}

/** Elements for a text. */
export function elements(text) {
  const tokens = text.length <= LENGTH_MAX ? parser.parse(text, {}) : null;
  if (!tokens || count(tokens) > TOKENS_MAX) return [el("p", { class: "plain", textContent: text })];
  const made = document.createElement("div");
  build(tokens, made);
  return [...made.childNodes];
}

/** Shows a text in a node. What is there already and stays the same is not touched. */
export function draw(text, node) {
  const made = elements(text);
  made.forEach((next, i) => {
    const now = node.childNodes[i];
    if (!now) node.append(next);
    else if (!now.isEqualNode(next)) now.replaceWith(next);
  });
  while (node.childNodes.length > made.length) node.lastChild.remove();
}
