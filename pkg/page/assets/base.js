// What all parts of the page share. Every text reaches the page through put(), as
// text.
"use strict";

const rollout = { data: null, filter: { text: "", kind: "", set: "", agent: "", run: "" }, sort: { by: "", down: false }, most: 200 };

const SVG = "http://www.w3.org/2000/svg";

// h makes an element. Attributes are the page's own; children are elements or
// texts, and lists of these; null is nothing.
function h(tag, attributes, ...children) {
  const svg = tag.startsWith("svg:");
  const e = svg ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else e.setAttribute(k, v === true ? "" : String(v));
  }
  return put(e, children);
}

// put appends children to an element: elements, and texts made visible.
function put(e, ...children) {
  for (const c of children.flat(Infinity)) {
    if (c === null || c === undefined || c === false || c === "") continue;
    e.append(c instanceof Node ? c : document.createTextNode(visible(String(c))));
  }
  return e;
}

// fill puts children in the place of those that were there.
function fill(e, ...children) {
  e.replaceChildren();
  return put(e, children);
}

// visible is a text that does nothing on a page but stand there: what has no
// shape of its own, or turns the direction of writing, gets one. A browser sits
// for minutes over a letter with 100,000 accents: a few are kept.
function visible(text) {
  return text.replace(/\r\n/g, "\n").replace(/([\p{M}\p{Cf}]{8})[\p{M}\p{Cf}]+/gu, "$1\u2026").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => {
    const n = c.charCodeAt(0);
    if (n < 0x20 || n === 0x7f) return "^" + String.fromCharCode(n ^ 0x40);
    return "\\u" + n.toString(16).padStart(4, "0");
  });
}

// keys are keystrokes as a person would name them.
function keys(text) {
  return text.replace(/\r/g, "\n").replace(/\t/g, "\u21e5").replace(/\n/g, "\u23ce\n");
}

// A no-op is to be rejected; the outcomes of others are those of the report.
const kinds = { solved: "solved", rejected: "no-op rejected", partly: "in part", failed: "failed", accepted: "no-op passed", fault: "no verdict" };

function number(n) {
  if (n === null || n === undefined) return "";
  if (n >= 1e6) return (n / 1e6).toFixed(1) + "M";
  if (n >= 1e4) return (n / 1e3).toFixed(0) + "k";
  return String(Math.round(n * 1000) / 1000);
}

// time is as the tables have it: 3.2s, 41s, 12m03s.
function time(s) {
  if (s < 10) return Math.max(s, 0).toFixed(1) + "s";
  if (s < 60) return s.toFixed(0) + "s";
  return Math.floor(Math.round(s) / 60) + "m" + String(Math.round(s) % 60).padStart(2, "0") + "s";
}

function badge(kind) {
  return h("span", { class: "badge " + kind }, kinds[kind] || kind);
}

// load runs a script of the report's, once.
const loading = new Map();
function load(path) {
  if (!loading.has(path)) {
    loading.set(path, new Promise((done, failed) => {
      document.head.append(h("script", { src: path, onload: () => done(), onerror: () => failed(new Error(path + " is not there")) }));
    }));
  }
  return loading.get(path);
}
