// The plots of the list: drawn by hand, for no library is worth three bars.
"use strict";

// outcomes is a bar for each run, agent and dataset: two runs of one agent are
// two. A click on a piece shows its trials.
function outcomes(trials, pick) {
  const rows = new Map();
  for (const t of trials) {
    const key = JSON.stringify([t.run, t.agent, t.set]);
    if (!rows.has(key)) rows.set(key, { run: t.run, agent: t.agent, set: t.set, n: 0 });
    const r = rows.get(key);
    r[t.kind] = (r[t.kind] || 0) + 1;
    r.n++;
  }
  const all = [...rows.values()].sort((a, b) => a.agent.localeCompare(b.agent) || a.set.localeCompare(b.set) || a.run - b.run);
  const there = Object.keys(kinds).filter((k) => all.some((r) => r[k]));
  return [h("p", { class: "legend" }, there.map((k) => h("span", null, h("i", { class: "swatch " + k }), kinds[k]))),
    h("table", { class: "bars outcomes" }, all.map((r) =>
      h("tr", null, h("th", null, r.set), h("td", { class: "dim" }, actor(r)), h("td", null, bar(r, pick)),
        h("td", { class: "n" }, ((r.solved || 0) + (r.rejected || 0)) + " of " + r.n + (r.agent === "nop" ? " rejected" : " solved")))))];
}

// actor is who acted in a trial, and in which run where there are several.
function actor(t) {
  return t.agent + (rollout.data.runs.length > 1 ? ", " + rollout.data.runs[t.run] : "");
}

function bar(r, pick) {
  let x = 0;
  const svg = h("svg:svg", { viewBox: "0 0 1000 20", preserveAspectRatio: "none", class: "bar", role: "img" });
  for (const k of Object.keys(kinds)) {
    if (!r[k]) continue;
    const w = (1000 * r[k]) / r.n;
    svg.append(h("svg:rect", { x: x, y: 0, width: w, height: 20, class: "fill " + k, onclick: () => pick({ kind: k, set: r.set, agent: r.agent, run: rollout.data.runs.length > 1 ? String(r.run) : "" }) },
      h("svg:title", null, kinds[k] + ": " + r[k] + " of " + r.n)));
    x += w;
  }
  return svg;
}

// histogram counts trials by a quantity, in pieces by outcome. The last column
// also has what is far out, so that one trial does not flatten the others. least
// is the width of a column at least: 1 of what is counted in whole numbers.
function histogram(trials, of, unit, least) {
  const values = trials.map((t) => ({ v: of(t), kind: t.kind })).filter((t) => t.v !== null && t.v !== undefined && t.v > 0);
  if (values.length === 0) return null;
  const sorted = values.map((t) => t.v).sort((a, b) => a - b);
  const far = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * 0.98))];
  const step = Math.max(nice(far / 20), least || 0), columns = Math.max(1, Math.ceil((far + step / 1e6) / step));
  const bins = Array.from({ length: columns }, () => ({ n: 0 }));
  for (const t of values) {
    const b = bins[Math.min(columns - 1, Math.floor(t.v / step))];
    b[t.kind] = (b[t.kind] || 0) + 1;
    b.n++;
  }
  const high = Math.max(...bins.map((b) => b.n)), W = 420, H = 120, w = W / columns;
  const svg = h("svg:svg", { viewBox: `-40 -26 ${W + 60} ${H + 52}`, class: "histogram", role: "img" }, h("svg:text", { x: -40, y: -14, class: "axis" }, "trials"));
  for (const n of new Set([Math.round(high / 2), high])) {
    const y = H - n / high * H;
    svg.append(h("svg:line", { x1: 0, x2: W, y1: y, y2: y, class: "grid" }), h("svg:text", { x: -5, y: y + 5, class: "axis end" }, number(n)));
  }
  bins.forEach((b, i) => {
    let y = H;
    for (const k of Object.keys(kinds)) {
      if (!b[k]) continue;
      const size = (H * b[k]) / high;
      y -= size;
      svg.append(h("svg:rect", { x: i * w + 0.5, y: y, width: Math.max(w - 1, 0.5), height: size, class: "fill " + k },
        h("svg:title", null, `${unit(i * step)} to ${i === columns - 1 ? unit(sorted[sorted.length - 1]) : unit((i + 1) * step)}: ${b[k]} ${kinds[k]}`)));
    }
  });
  svg.append(h("svg:line", { x1: 0, x2: W, y1: H, y2: H, class: "base" }));
  const each = Math.max(1, nice(columns / 4)); // columns between two labels
  for (let i = 0; i <= columns; i += each) svg.append(h("svg:text", { x: i * w, y: H + 19, class: "axis mid" }, i ? unit(i * step) : "0"));
  return svg;
}

// nice is the next of 1, 2, 5, 10, 20, ...
function nice(x) {
  const p = Math.pow(10, Math.floor(Math.log10(x)));
  for (const m of [1, 2, 5]) if (m * p >= x * 0.999) return m * p;
  return 10 * p;
}

function figure(title, drawing, kind) {
  return drawing && h("figure", { class: kind }, h("figcaption", null, title), drawing);
}
