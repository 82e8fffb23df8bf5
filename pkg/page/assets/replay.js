// The replay of a terminal. xterm.js draws it; it gets what the terminal got and
// gives nothing back: no keys, no links, no clipboard.
"use strict";

class Replay {
  // moments are [seconds, name] to go to.
  constructor(cast, moments) {
    this.cast = cast;
    this.moments = moments;
    this.speed = 1;
    this.brief = true; // long pauses take two seconds
    this.next = 0; // event
    this.position = 0; // on the clock of the replay
    this.playing = 0; // timer
    this.clock();
  }

  // clock gives every event its time in the replay.
  clock() {
    let last = 0, now = 0;
    this.times = this.cast.events.map(([at]) => {
      now += this.brief ? Math.min(at - last, 2) : at - last;
      last = at;
      return now;
    });
    this.length = Math.max(now, 0.001);
    this.places = this.moments.map(([at]) => this.moment(at));
  }

  // moment is the time in the replay of a time in the recording: before the event
  // that comes next, however short the pause in between was made.
  moment(at) {
    let from = 0, to = this.times.length; // the first event after it is among these
    while (from < to) {
      const i = (from + to) >> 1;
      if (this.cast.events[i][0] > at) to = i; else from = i + 1;
    }
    if (from === 0) return 0;
    if (from === this.times.length) return this.length;
    const [was, next] = [this.cast.events[from - 1][0], this.cast.events[from][0]];
    return this.times[from - 1] + (at - was) / (next - was) * (this.times[from] - this.times[from - 1]);
  }

  async draw() {
    const screen = h("div", { class: "screen" });
    this.scrub = h("input", { type: "range", min: 0, max: 1000, step: "any", value: 0, class: "scrub", "aria-label": "position", oninput: (e) => this.follow(e.target.value / 1000 * this.length) });
    this.button = h("button", { onclick: () => (this.playing ? this.pause() : this.play()) }, "play");
    this.label = h("span", { class: "dim clock" });
    this.ticks = h("div", { class: "ticks" });
    this.buttons = this.moments.map(([at, name]) => h("button", { onclick: () => this.go(at) }, name));
    this.root = h("div", { class: "replay" }, screen,
      h("div", { class: "controls" }, this.button, h("div", { class: "track" }, this.scrub, this.ticks), this.label,
        h("select", { "aria-label": "speed", onchange: (e) => { this.speed = Number(e.target.value); } }, [0.5, 1, 2, 5, 20].map((s) => h("option", { value: s, selected: s === 1 }, s + "x"))),
        h("label", null, h("input", { type: "checkbox", checked: true, onchange: (e) => this.shorten(e.target.checked) }), "short pauses")),
      h("div", { class: "moments" }, this.buttons),
      this.cast.cut ? h("p", { class: "dim" }, "The recording goes on; so much of it is not kept in a report.") : null);
    await load("xterm/xterm.js");
    this.term = new Terminal({ cols: this.cast.w, rows: this.cast.h, disableStdin: true, scrollback: 5000, allowProposedApi: false, cursorBlink: false,
      fontSize: this.size(), fontFamily: "ui-monospace, 'DejaVu Sans Mono', 'Liberation Mono', monospace",
      linkHandler: { activate() {}, allowNonHttpProtocols: true }, windowOptions: {}, theme: { background: "#14161a", foreground: "#d8dbe0" } });
    this.term.open(screen);
    const fit = () => (this.root.isConnected ? this.term.options.fontSize = this.size() : removeEventListener("resize", fit));
    addEventListener("resize", fit);
    this.mark();
    this.seek(this.length);
    return this.root;
  }

  // size is that of letters with which a line fits into the window, in pixels.
  size() {
    const room = Math.min(document.body.clientWidth, 1400) - 60;
    return Math.max(6, Math.min(14, Math.floor(room / this.cast.w / 0.602)));
  }

  // mark draws a line on the scrubber for each moment.
  mark() {
    fill(this.ticks, this.places.map((p) => h("i", { style: "left: " + p / this.length * 100 + "%" })));
  }

  // seek shows the terminal as it was at a time of the replay.
  seek(to) {
    if (to < this.position) {
      this.term.write("\x1bc"); // in its place among what is still to be drawn
      this.term.write("", () => this.term.resize(this.cast.w, this.cast.h));
      this.next = 0;
    }
    let text = "";
    // In pieces: between two of them the browser answers to whoever looks on.
    const flush = () => {
      for (let i = 0; i < text.length; i += 4096) this.term.write(text.slice(i, i + 4096));
      text = "";
    };
    for (; this.next < this.times.length && this.times[this.next] <= to; this.next++) {
      const [, kind, data] = this.cast.events[this.next];
      if (kind === "o") text += data;
      const size = kind === "r" && /^(\d{1,3})x(\d{1,3})$/.exec(data);
      if (size) {
        flush();
        this.term.write("", () => this.term.resize(Math.max(2, Math.min(500, Number(size[1]))), Math.max(1, Math.min(200, Number(size[2])))));
      }
    }
    flush();
    this.position = to;
    if (!this.busy) this.scrub.value = to / this.length * 1000; // else a hand is on it
    this.label.textContent = time(to) + " / " + time(this.length);
    const now = this.places.findLastIndex((p) => p <= to);
    this.buttons.forEach((b, i) => b.classList.toggle("now", i === now));
  }

  // follow seeks to a place, such as where the scrubber is: to the last one that
  // was asked for since the terminal began to draw an earlier one.
  follow(to) {
    this.pause();
    this.wanted = to;
    if (this.busy) return;
    this.busy = true;
    this.seek(to);
    this.term.write("", () => {
      this.busy = false;
      if (this.wanted !== to) this.follow(this.wanted);
    });
  }

  // go is seek to a time in the recording.
  go(at) {
    const to = this.moment(at);
    this.follow(to);
    this.scrub.value = to / this.length * 1000;
  }

  shorten(yes) {
    const at = this.next > 0 ? this.cast.events[this.next - 1][0] : 0;
    this.brief = yes;
    this.clock();
    this.mark();
    this.position = this.moment(at);
    this.seek(this.position);
  }

  play() {
    if (this.position >= this.length) this.seek(0);
    let last = performance.now();
    this.button.textContent = "pause";
    this.playing = setInterval(() => {
      if (!this.root.isConnected) return this.pause();
      const now = performance.now();
      this.seek(Math.min(this.length, this.position + (now - last) / 1000 * this.speed));
      last = now;
      if (this.position >= this.length) this.pause();
    }, 40);
  }

  pause() {
    clearInterval(this.playing);
    this.playing = 0;
    this.button.textContent = "play";
  }
}
