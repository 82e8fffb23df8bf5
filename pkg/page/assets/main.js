// What is shown follows from the address: nothing, or #t=NUMBER with &turn=N or
// &at=SECONDS.
"use strict";

async function route() {
  const where = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const one = where.t !== undefined;
  document.getElementById("list").hidden = one;
  document.getElementById("one").hidden = !one;
  if (!one) {
    fill(document.getElementById("one")); // ends a replay
    document.title = "rollout report";
    return;
  }
  scrollTo(0, 0);
  await drawTrial(Number(where.t), where);
  const t = rollout.data.trials[Number(where.t)];
  document.title = t ? visible(t.name) : "rollout report";
  const turn = document.getElementById("turn-" + where.turn);
  if (turn) turn.scrollIntoView();
  document.documentElement.dataset.shown = where.t;
}

rollout.index = (data) => {
  rollout.data = data;
  data.trials.forEach((t, i) => { t.i = i; });
  drawList();
  route();
  addEventListener("hashchange", route);
  document.documentElement.dataset.ready = Math.round(performance.now());
};
