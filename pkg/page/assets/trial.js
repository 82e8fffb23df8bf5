// One trial.
"use strict";

const opened = new Map();
rollout.trial = (n, d) => opened.set(n, d);

// drawTrial shows a trial. where may name a turn, or a second of the replay.
async function drawTrial(n, where) {
  const t = rollout.data.trials[n], root = document.getElementById("one");
  if (!t) return fill(root, h("p", null, h("a", { href: "#" }, "all trials")), h("p", null, "There is no such trial in this report."));
  try {
    await load("data/" + n + ".js");
  } catch (e) {
    return fill(root, h("p", null, h("a", { href: "#" }, "all trials")), h("p", null, "The trial's file is not beside the page: " + e.message));
  }
  const d = opened.get(n), order = shown().map((t) => t.i), at = order.indexOf(n);
  const step = (i, text) => (order[i] === undefined ? h("span", { class: "dim" }, text) : h("a", { href: "#t=" + order[i] }, text));
  fill(root, 
    h("p", { class: "nav" }, h("a", { href: "#" }, "all trials"), step(at - 1, "\u2190 previous"), step(at + 1, "next \u2192")),
    h("h1", null, t.name),
    h("p", null, badge(t.kind), " ", t.set + " \u00b7 " + t.agent, t.reward === null ? "" : " \u00b7 reward " + number(t.reward), t.tainted ? [" ", h("span", { class: "badge failed" }, "tainted")] : null),
    d.fault ? notice("fault", "No verdict: " + d.fault.class + " in the phase " + d.fault.phase + ", cause: " + d.fault.cause, d.fault.message, d.fault.hint && "What to do: " + d.fault.hint) : null,
    d.tainted && d.tainted.length ? notice("failed", "The agent changed files that the verifier then executed or loaded", d.tainted.map((x) => x.path + ": " + x.why)) : null,
    d.warnings && d.warnings.length ? notice("partly", "Warnings", d.warnings) : null,
    h("div", { class: "two" },
      h("table", { class: "facts" }, d.rows.map(([k, v]) => h("tr", null, h("th", null, k), h("td", null, v)))),
      h("div", null, phases(d.phases), d.isolation ? [h("h3", null, "Isolation"), h("ul", null, d.isolation.map((l) => h("li", null, l)))] : null)));
  if (d.parts.length === 0) put(root, h("p", { class: "dim" }, "Only the record of this trial was read, and not its files."));
  for (const p of d.parts) put(root, await drawPart(p, where));
}

function notice(kind, title, ...lines) {
  return h("div", { class: "notice " + kind }, h("b", null, title), lines.flat().filter(Boolean).map((l) => h("div", null, l)));
}

// phases is where the time went.
function phases(all) {
  const end = Math.max(...all.map((p) => p.to), 0.001);
  if (all.length === 0) return null;
  return h("table", { class: "bars", "aria-label": "where the time went" }, h("caption", null, "Where the time went"), all.map((p) => h("tr", null, h("th", null, p.name),
    h("td", null, h("svg:svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", class: "bar" },
      h("svg:rect", { x: 1000 * p.from / end, width: Math.max(3, 1000 * (p.to - p.from) / end), y: 4, height: 12, class: "fill phase" }))),
    h("td", { class: "n" }, time(p.to - p.from)))));
}

// moments are the places of a recording to go to: what it names itself, and the
// beginning of each turn.
function moments(p) {
  const named = p.replay.events.filter(([, kind]) => kind === "m").map(([at, , name]) => [at, name || "mark"]);
  const turns = p.replay.start ? p.turns.filter((t) => t.n && t.at).map((t) => [(t.at - p.replay.start) / 1000, "turn " + t.n]) : [];
  return [...named, ...turns].sort((a, b) => a[0] - b[0]).slice(0, 500);
}

async function drawPart(p, where) {
  const out = [];
  if (p.name) out.push(h("h2", { class: "step" }, "Step " + p.name), p.facts && h("ul", { class: "facts" }, p.facts.map((l) => h("li", null, l))));
  if (p.note) out.push(notice("partly", "Not all could be read", p.note));
  let replay = null;
  if (p.replay && p.replay.events.length) {
    replay = new Replay(p.replay, moments(p));
    out.push(h("h2", null, "Terminal"), await replay.draw());
    if (where.at !== undefined) replay.go(Number(where.at));
  }
  if (p.turns.length) {
    out.push(h("h2", null, "Turns"), p.cut ? notice("partly", p.cut + " turns of the middle are not in this report") : null,
      p.turns.map((t) => drawTurn(t, p, replay)));
  }
  for (const [title, text] of [["What the verifier printed", p.verifier], ["What the solution printed", p.script]]) {
    if (text) out.push(h("h2", null, title), h("pre", { class: "output" }, text));
  }
  if (!replay && !p.turns.length && !p.verifier && !p.script) out.push(h("p", { class: "dim" }, "Nothing was printed, and no turn was taken."));
  return out;
}

function drawTurn(t, p, replay) {
  const since = p.turns[0].at && t.at ? "+" + time((t.at - p.turns[0].at) / 1000) : "";
  return h("article", { class: "turn " + (["agent", "user", "system"].includes(t.source) ? t.source : ""), id: t.n ? "turn-" + t.n : null },
    h("header", null, h("b", null, t.n ? "turn " + t.n : t.source), h("span", { class: "dim" }, since),
      t.in !== null || t.out !== null ? h("span", { class: "dim" }, number(t.in) + " tokens in, " + number(t.out) + " out") : null,
      replay && t.at && p.replay.start ? h("button", { onclick: () => { replay.go(t.end ? (t.end - p.replay.start) / 1000 : Infinity); replay.root.scrollIntoView({ block: "center" }); } }, "show in the terminal") : null),
    (t.notes || []).map((n) => h("div", { class: "note" }, n)),
    t.fence && t.fence.length ? h("div", { class: "note" }, "may have met the fence: " + t.fence.join(", ")) : null,
    t.thoughts ? h("details", null, h("summary", null, "thoughts"), h("pre", { class: "thoughts" }, t.thoughts)) : null,
    t.message ? h("pre", { class: "message" }, t.message) : null,
    t.calls.map((c) => h("div", { class: "call" },
      c.keys !== null ? [h("pre", { class: "keys" }, c.keys === "" ? "(waits)" : keys(c.keys)), c.duration !== null ? h("span", { class: "dim" }, number(c.duration) + " s") : null]
        : h("span", { class: "dim" }, c.name === "mark_task_complete" ? "says that the task is complete" : c.name + (c.args ? " " + c.args : "")))),
    t.seen ? h("pre", { class: "seen" }, t.seen) : null);
}
