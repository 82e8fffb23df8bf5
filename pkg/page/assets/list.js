// The list of trials, with what was counted.
"use strict";

// The columns: that of runs where there are several, those of numbers where
// there are any. What a cell shows is
// what it is sorted by, unless it says otherwise.
const all = [
  { name: "Trial", of: (t) => t.name, show: (t) => h("a", { href: "#t=" + t.i }, t.name) },
  { name: "Run", of: (t) => rollout.data.runs[t.run] },
  { name: "Dataset", of: (t) => t.set },
  { name: "Agent", of: (t) => t.agent },
  { name: "Outcome", of: (t) => Object.keys(kinds).indexOf(t.kind), show: (t) => badge(t.kind) },
  { name: "Reward", of: (t) => t.reward, number: true },
  { name: "Turns", of: (t) => t.turns || null, number: true },
  { name: "Not read", of: (t) => t.unread || null, number: true },
  { name: "Cut off", of: (t) => t.cut || null, number: true },
  { name: "Hand-overs", of: (t) => t.handed || null, number: true },
  { name: "Tokens in", of: (t) => t.in, number: true },
  { name: "Tokens out", of: (t) => t.out, number: true },
  { name: "Time", of: (t) => t.s, show: (t) => time(t.s), number: true },
  { name: "Why", of: (t) => why(t), style: "why" },
];
const columns = () => all.filter((c) => c.name === "Run" ? rollout.data.runs.length > 1 : !c.number || rollout.data.trials.some((t) => c.of(t) !== null));

function why(t) {
  const parts = [];
  if (t.class) parts.push(t.class + " (" + t.cause + ")");
  else if (t.stop && t.stop !== "done") parts.push(t.stop);
  if (t.likely) parts.push(t.likely);
  if (t.tainted) parts.push("tainted");
  return parts.join("; ");
}

// shown are the trials that the filter lets through, in the order asked for.
function shown() {
  const f = rollout.filter, words = f.text.toLowerCase().split(/\s+/).filter(Boolean);
  const some = rollout.data.trials.filter((t) =>
    (!f.kind || t.kind === f.kind) && (!f.set || t.set === f.set) && (!f.agent || t.agent === f.agent) && (f.run === "" || t.run === Number(f.run)) &&
    words.every((w) => (t.name + " " + t.task + " " + t.set + " " + t.agent + " " + kinds[t.kind] + " " + why(t)).toLowerCase().includes(w)));
  const c = all.find((c) => c.name === rollout.sort.by);
  if (c) {
    const sign = rollout.sort.down ? -1 : 1;
    some.sort((a, b) => {
      const x = c.of(a), y = c.of(b);
      if (x === null || x === undefined || x === "") return 1;
      if (y === null || y === undefined || y === "") return -1;
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }
  return some;
}

function drawList() {
  const d = rollout.data, root = document.getElementById("list");
  const n = (k) => d.trials.filter((t) => t.kind === k).length;
  fill(root, 
    h("h1", null, "rollout report"),
    h("p", { class: "dim" }, d.runs.join(", ")),
    h("div", { class: "cards" },
      card(d.trials.length, "trials"), d.open ? card(d.open, "not done") : null, Object.keys(kinds).filter(n).map((k) => card(n(k), kinds[k], k)),
      rates(d.trials),
      d.trials.some((t) => t.tainted) ? card(d.trials.filter((t) => t.tainted).length, "tainted", "failed") : null),
    h("div", { class: "plots" },
      figure("Outcomes by dataset and agent", outcomes(d.trials, (f) => { Object.assign(rollout.filter, f); drawTrials(); document.getElementById("trials").scrollIntoView(); }), "all"),
      figure("Time of a trial", histogram(d.trials, (t) => t.s, time)),
      figure("Turns", histogram(d.trials, (t) => t.turns, number, 1)),
      figure("Tokens read", histogram(d.trials, (t) => t.in, number, 1)),
      figure("Tokens written", histogram(d.trials, (t) => t.out, number, 1))),
    h("section", { id: "trials" }),
    h("section", null, d.blocks.map(block)));
  drawTrials();
}

// rates are how much each agent has solved of what was judged; a no-op is to fail.
function rates(trials) {
  const by = new Map();
  for (const t of trials) {
    if (t.agent === "nop" || !["solved", "partly", "failed"].includes(t.kind)) continue;
    const r = by.get(actor(t)) || { solved: 0, judged: 0 };
    r.judged++;
    r.solved += t.kind === "solved";
    by.set(actor(t), r);
  }
  return [...by].map(([who, r]) => card((r.solved / r.judged * 100).toFixed(1) + "%", "of verdicts solved" + (by.size > 1 ? ": " + who : "")));
}

function card(value, what, kind) {
  return h("div", { class: "card " + (kind || "") }, h("b", null, value), h("span", null, what));
}

function drawTrials() {
  const f = rollout.filter;
  const select = (key, first, options) => h("select", { "aria-label": first, onchange: (e) => { f[key] = e.target.value; drawTrials(); } },
    h("option", { value: "" }, first), options.map(([v, text]) => h("option", { value: v, selected: String(f[key]) === String(v) }, text)));
  const distinct = (of) => [...new Set(rollout.data.trials.map(of))].sort().map((v) => [v, v]);
  const search = h("input", { type: "search", placeholder: "search", "aria-label": "search", value: f.text, oninput: (e) => { f.text = e.target.value; rows(); } });
  const table = h("div", { class: "wide" }), count = h("span", { class: "dim" });
  const rows = () => {
    const some = shown();
    count.textContent = some.length + " of " + rollout.data.trials.length;
    fill(table, h("table", { class: "trials" },
      h("thead", null, h("tr", null, columns().map((c) => h("th", { class: c.number ? "n" : "", tabindex: 0, "aria-sort": rollout.sort.by === c.name ? (rollout.sort.down ? "descending" : "ascending") : "none",
        onclick: () => order(c), onkeydown: (e) => { if (e.key === "Enter") order(c); } }, c.name, rollout.sort.by === c.name ? (rollout.sort.down ? " \u25be" : " \u25b4") : "")))),
      h("tbody", null, some.slice(0, rollout.most).map(row))),
      some.length > rollout.most ? h("button", { onclick: () => { rollout.most = Infinity; rows(); } }, "show all " + some.length) : null);
  };
  const order = (c) => {
    rollout.sort = { by: c.name, down: rollout.sort.by === c.name ? !rollout.sort.down : !!c.number };
    rows();
  };
  fill(document.getElementById("trials"), h("h2", null, "Trials"),
    h("div", { class: "filters" }, search, select("kind", "every outcome", Object.entries(kinds)), select("set", "every dataset", distinct((t) => t.set)),
      select("agent", "every agent", distinct((t) => t.agent)), rollout.data.runs.length > 1 ? select("run", "every run", rollout.data.runs.map((r, i) => [i, r])) : null,
      h("button", { onclick: () => { rollout.filter = { text: "", kind: "", set: "", agent: "", run: "" }; drawTrials(); } }, "clear"), count),
    table);
  rows();
}

function row(t) {
  return h("tr", null, columns().map((c) => h("td", { class: c.number ? "n" : c.style }, c.show ? c.show(t) : c.number ? number(c.of(t)) : c.of(t))));
}

// block is a part of the report as 'rollout report' prints it.
function block(b) {
  const words = (i) => i < (b.left || 0) || (b.words && i === b.header.length - 1);
  return [h(b.level === 1 ? "h2" : "h3", null, b.heading),
    b.rows ? h("div", { class: "wide" }, h("table", null, h("thead", null, h("tr", null, b.header.map((c, i) => h("th", { class: words(i) ? "" : "n" }, c)))),
      h("tbody", null, b.rows.map((r) => h("tr", null, r.map((c, i) => h("td", { class: words(i) ? "" : "n" }, c))))))) : null,
    b.lines ? h("ul", null, b.lines.map((l) => h("li", null, l))) : null];
}
