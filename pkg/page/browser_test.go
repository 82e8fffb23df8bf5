package page

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/pkg/report"
	"fence/pkg/result"
	"fence/test/browser"
)

// pictures go there when somebody wants to look at them.
var pictures = os.Getenv("PAGE_PICTURES")

func picture(p *browser.Page, name string) {
	if pictures != "" {
		p.Picture(filepath.Join(pictures, name+".png"))
	}
}

// quiet checks that a page wrote nothing to the console, asked nothing, and
// was not refused anything by its policy.
func quiet(t *testing.T, p *browser.Page) {
	t.Helper()
	for _, s := range p.Said() {
		t.Errorf("the page said: %.500s", s)
	}
}

// A list of 1,000 trials: drawn, sorted, filtered, and a trial opened from it.
func TestBrowser_List(t *testing.T) {
	dir := t.TempDir()
	in, files := run(1000), t.TempDir()
	for i := range in.Trials {
		played(t, &in.Trials[i], filepath.Join(files, fmt.Sprint(i)), 3, "")
	}
	other := run(20)
	other.Name = "jobs/other"
	other.Trials[4].Tainted = []result.Taint{{Path: "/usr/bin/python3", Why: "executed"}}
	if err := Write(dir, []report.Input{in, other}); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 1400, 1100)
	p.Go("file://" + dir + "/index.html")
	p.Until("document.documentElement.dataset.ready !== undefined")
	picture(p, "list")
	is := func(what string, expression string, want any) {
		t.Helper()
		var got any
		p.Eval(expression, &got)
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	const rows = "document.querySelectorAll('.trials tbody tr').length"
	is("rows at first", rows, 200.0)
	is("bars by run, dataset and agent", "document.querySelectorAll('figure.all svg').length", 12.0)
	is("the rate of each", "[...document.querySelectorAll('.card span')].map((e) => e.textContent).filter((s) => s.startsWith('of verdicts solved')).sort().join('; ')",
		"of verdicts solved: terminus model-a, jobs/demo; of verdicts solved: terminus model-a, jobs/other; of verdicts solved: terminus model-b, jobs/demo; of verdicts solved: terminus model-b, jobs/other")
	is("pieces of bars", "document.querySelectorAll('figure.all rect').length", 38.0)
	is("histograms", "document.querySelectorAll('svg.histogram').length", 4.0)
	is("all of the time's trials are drawn", "[...document.querySelectorAll('svg.histogram')[0].querySelectorAll('title')].reduce((n, t) => n + Number(/: (\\d+) /.exec(t.textContent)[1]), 0)", 1020.0)
	is("every column has a height", "[...document.querySelectorAll('svg.histogram rect')].every((r) => r.getBoundingClientRect().height > 0)", true)
	is("the tables of the report", "[...document.querySelectorAll('h2')].map((e) => e.textContent).includes('jobs/other')", true)
	p.Eval("[...document.querySelectorAll('button')].find((b) => b.textContent.startsWith('show all')).click()", nil)
	is("all rows", rows, 1020.0)
	p.Eval("[...document.querySelectorAll('.trials th')].find((e) => e.textContent === 'Time').click()", nil)
	is("the longest first", "document.querySelector('.trials tbody tr').children[9].textContent === time(Math.max(...rollout.data.trials.map((t) => t.s)))", true)
	p.Eval("{ const e = document.querySelector('input[type=search]'); e.value = 'tmux SETUP_failed'; e.dispatchEvent(new Event('input')); }", nil)
	is("rows of a search", rows, 36.0)
	p.Eval("[...document.querySelectorAll('.filters button')].find((b) => b.textContent === 'clear').click()", nil)
	p.Eval("document.querySelector('figure.all rect.failed').dispatchEvent(new MouseEvent('click', { bubbles: true }))", nil)
	is("rows of a piece of a bar", "[...document.querySelectorAll('.trials tbody tr')].every((r) => r.children[2].textContent === 'endless-terminals' && r.children[3].textContent === 'terminus model-a' && r.children[4].textContent === 'failed') && "+rows+" > 10", true)
	picture(p, "filtered")
	p.Eval("[...document.querySelectorAll('.filters button')].find((b) => b.textContent === 'clear').click()", nil)
	p.Eval("document.querySelectorAll('.trials tbody a')[0].click()", nil)
	p.Until("document.documentElement.dataset.shown !== undefined && !document.getElementById('one').hidden")
	is("the list is away", "document.getElementById('list').hidden", true)
	p.Eval("history.back()", nil)
	p.Until("!document.getElementById('list').hidden")
	quiet(t, p)
}

// A trial with its turns, and its terminal played again.
func TestBrowser_Replay(t *testing.T) {
	dir := t.TempDir()
	in := run(3)
	played(t, &in.Trials[1], t.TempDir(), 12, "")
	if err := Write(dir, []report.Input{in}); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 1400, 1400)
	p.Go("file://" + dir + "/index.html#t=1")
	p.Until("document.documentElement.dataset.shown === '1'")
	screen := "document.querySelector('.xterm-rows').innerText.replace(/\\u00a0/g, ' ')"
	p.Until(screen + ".includes('turn-12')")
	picture(p, "trial")
	go1 := func(name, has, hasNot string) {
		t.Helper()
		p.Eval("[...document.querySelectorAll('.moments button')].find((b) => b.textContent === '"+name+"').click()", nil)
		p.Until(screen + ".includes('" + has + "') && !" + screen + ".includes('" + hasNot + "')")
	}
	var marks struct {
		Names []string
		At    []float64
		Now   string
	}
	p.Eval("({ Names: [...document.querySelectorAll('.moments button')].map((b) => b.textContent), Now: document.querySelector('.moments .now').textContent, At: [...document.querySelectorAll('.ticks i')].map((e) => parseFloat(e.style.left)) })", &marks)
	if len(marks.Names) != 12 || marks.Names[11] != "turn 12" || marks.Now != "turn 12" || len(marks.At) != 12 || marks.At[0] != 0 || !slices.IsSorted(marks.At) || marks.At[11] >= 100 {
		t.Errorf("the marks of turns are %+v", marks)
	}
	go1("turn 4", "turn-3", "turn-4")
	go1("turn 9", "turn-8", "turn-9")
	go1("turn 2", "turn-1", "turn-2")
	// The scrubber is dragged about, and the last place counts.
	p.Eval("{ const s = document.querySelector('.scrub'); for (const v of [10, 700, 200, 1000]) { s.value = v; s.dispatchEvent(new Event('input')); } }", nil)
	p.Until(screen + ".includes('turn-12')")
	p.Eval("{ const s = document.querySelector('.scrub'); s.value = 0; s.dispatchEvent(new Event('input')); document.querySelector('.controls select').value = '20'; document.querySelector('.controls select').dispatchEvent(new Event('change')); document.querySelector('.controls button').click(); }", nil)
	p.Until("document.querySelector('.controls button').textContent === 'pause'")
	p.Until("document.querySelector('.controls button').textContent === 'play'") // it has come to its end
	p.Until(screen + ".includes('turn-12')")
	p.Eval("document.querySelector('#turn-3 header button').click()", nil)
	p.Until(screen + ".includes('turn-3') && !" + screen + ".includes('turn-4')")
	var text string
	p.Eval("document.getElementById('turn-3').innerText", &text)
	for _, want := range []string{"turn 3", "+11s", "1002 tokens in, 50 out", "Plan: list the files", "echo turn-3\u23ce", "C-c", "New Terminal Output:"} {
		if !strings.Contains(text, want) {
			t.Errorf("turn 3 has no %q: %s", want, text)
		}
	}
	p.Eval("document.getElementById('one').innerText", &text)
	for _, want := range []string{"task-0001__Ab3dE6g", "failed, reward 0", "What the verifier printed", "assert 1 == 2", "opened: nothing"} {
		if !strings.Contains(text, want) {
			t.Errorf("the trial has no %q", want)
		}
	}
	quiet(t, p)
}

// What is written can be read, by day and by night, and a narrow window has no
// need to be scrolled to the side.
func TestBrowser_Legible(t *testing.T) {
	dir := t.TempDir()
	in := run(40)
	played(t, &in.Trials[1], t.TempDir(), 12, "")
	for i, agent := range []string{"nop", "nop", "oracle"} {
		in.Trials[20+i].AgentInfo.Name, in.Trials[20+i].AgentInfo.ModelInfo = agent, nil
	}
	in.Trials[1].Warnings, in.Trials[1].Tainted = []string{"a warning"}, []result.Taint{{Path: "/usr/bin/python3", Why: "executed"}}
	if err := Write(dir, []report.Input{in}); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 1400, 1400)
	p.Go("file://" + dir + "/index.html")
	for _, scheme := range []string{"light", "dark"} {
		p.Prefers(scheme)
		for _, where := range []string{"list", "trial"} {
			if where == "trial" {
				p.Eval("location.hash = 't=1'", nil)
				p.Until("!document.getElementById('one').hidden && document.documentElement.dataset.shown === '1'")
			}
			p.Wide(1400, 1400)
			picture(p, scheme+"-"+where)
			// WCAG 2.1, 1.4.3: the contrast of each text with what is behind it.
			var pale []string
			p.Eval(`(() => {
				const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, k, i) => { const v = c[i] / 255; return sum + k * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
				const dot = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
				const mix = (colors) => { for (const c of colors) { dot.fillStyle = c; dot.fillRect(0, 0, 1, 1); } return dot.getImageData(0, 0, 1, 1).data; };
				const pale = new Set(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
				for (let n = walk.nextNode(); n; n = walk.nextNode()) {
					const e = n.parentElement;
					if (!n.textContent.trim() || !e.checkVisibility() || e.closest(".xterm, select, button, input, noscript, script")) continue;
					const behind = [];
					for (let up = e; up; up = up.parentElement) behind.unshift(getComputedStyle(up).backgroundColor);
					const back = light(mix(behind)), front = light(mix([...behind, e.namespaceURI.endsWith("svg") ? getComputedStyle(e).fill : getComputedStyle(e).color]));
					const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
					if (ratio < 4.5) pale.add(e.tagName + "." + (e.getAttribute("class") || "") + " " + ratio.toFixed(1) + " " + n.textContent.slice(0, 20));
				}
				return [...pale];
			})()`, &pale)
			if len(pale) > 0 {
				t.Errorf("%s, %s: too pale are %q", scheme, where, pale)
			}
			p.Wide(420, 1400)
			var over float64
			if p.Eval("document.documentElement.scrollWidth - document.documentElement.clientWidth", &over); over > 0 {
				t.Errorf("%s: a narrow window is %.0f pixels too narrow", where, over)
			}
			picture(p, scheme+"-narrow-"+where)
			var bars bool
			if p.Eval("[...document.querySelectorAll('svg.bar')].every((e) => !e.checkVisibility() || e.getBoundingClientRect().width > 30)", &bars); !bars {
				t.Errorf("%s: a narrow window has no room for the bars", where)
			}
			if where == "trial" { // which was opened in a wide window
				p.Until("document.querySelector('.xterm-screen').getBoundingClientRect().width < 700")
			}
		}
		p.Eval("location.hash = ''", nil)
		p.Until("!document.getElementById('list').hidden")
	}
	quiet(t, p)
}

// Nothing that is shown becomes markup, a script, a link or a request.
func TestBrowser_Hostile(t *testing.T) {
	dir := t.TempDir()
	in := hostile(t)
	line := strings.Repeat("\x1b[31m<b>x", 5<<20/9)
	if err := os.WriteFile(filepath.Join(in.Trials[1].Dir, "verifier", "test-stdout.txt"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	marks := "e" + strings.Repeat("\u0301", 2_000_000)
	endless := `{"version": 2, "width": 160, "height": 40}` + "\n"
	for _, s := range []string{"\x1b[2147483647S", "\x1b[2147483647T", "\x1b[2147483647L", "\x1b[2147483647M", "\x1b[2147483647P", "\x1b[2147483647@", "\x1b[2147483647X", "x\x1b[2147483647b", "\x1b[2147483647I", "\x1b[2147483647Z",
		"\x1b[999999999;999999999H\x1b[2147483647r\x1b[2147483647E", marks, "\x1b]0;never ended, but for the next ESC", "\x1b[m\x1b[r\x1b[H\x1b[2Jthe end"} {
		data, err := json.Marshal([]any{1, "o", s})
		if err != nil {
			t.Fatal(err)
		}
		endless += string(data) + "\n"
	}
	for name, text := range map[string]string{"agent/recording.cast": endless, "verifier/test-stdout.txt": marks} {
		if err := os.WriteFile(filepath.Join(in.Trials[2].Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(dir, []report.Input{in, hostile(t)}); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 1400, 1100)
	p.Go("file://" + dir + "/index.html")
	harmless := func(where string) {
		t.Helper()
		var got struct {
			Title                    string
			Images, Scripts, Foreign int
			Bold                     int
			Evil                     bool
		}
		p.Eval(`({ Title: document.title, Images: document.querySelectorAll("img, iframe, object, embed, form, link:not([rel=stylesheet])").length,
			Scripts: document.querySelectorAll("main script").length, Bold: document.querySelectorAll("main b b").length,
			Foreign: [...document.querySelectorAll("[href], [src]")].filter((e) => !/^(#|data\/\d+\.js$|[a-z/]+\.(js|css)$|data\/index\.js$)/.test(e.getAttribute("href") || e.getAttribute("src"))).length,
			Evil: document.body.innerText.includes("</script><script>document.title='owned'</script><img src=x") })`, &got)
		if got.Title == "owned" || got.Images+got.Scripts+got.Foreign+got.Bold > 0 || !got.Evil {
			t.Errorf("%s: %+v", where, got)
		}
		var shown string
		p.Eval("document.getElementById('list').innerText + document.getElementById('one').innerText", &shown)
		if i := strings.IndexAny(shown, "\x1b\a\u202e\u2028"); i >= 0 {
			t.Errorf("%s: %q is on the page as it is", where, shown[i:min(len(shown), i+20)])
		}
	}
	harmless("the list")
	picture(p, "hostile-list")
	for _, n := range []string{"0", "1", "2"} {
		p.Eval("location.hash = 't="+n+"'", nil)
		p.Until("document.documentElement.dataset.shown === '" + n + "'")
		harmless("trial " + n)
	}
	p.Until("document.querySelector('.xterm-rows').innerText.replace(/\\u00a0/g, ' ').includes('the end')") // what would keep the player busy for ever does not
	var many bool
	if p.Eval(`/\p{M}{9}/u.test(document.getElementById("one").textContent)`, &many); many {
		t.Error("a letter has marks for minutes")
	}
	p.Eval("location.hash = 't=1'", nil)
	p.Until("document.documentElement.dataset.shown === '1'")
	p.Until("document.querySelector('.xterm-rows').innerText.replace(/\\u00a0/g, ' ').includes('a link')")
	picture(p, "hostile-trial")
	// A click on a link of the terminal's goes nowhere.
	var at struct{ X, Y float64 }
	p.Eval(`(() => { const e = [...document.querySelectorAll(".xterm-rows span")].find((e) => e.textContent.includes("link")); e.scrollIntoView({ block: "center" }); const r = e.getBoundingClientRect(); return { X: r.left + r.width / 2, Y: r.top + r.height / 2 }; })()`, &at)
	p.Click(at.X, at.Y)
	p.Eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))", nil)
	harmless("after a click")
	var output string
	p.Eval("[...document.querySelectorAll('pre.output')].map((e) => e.textContent).join('')", &output)
	if len(output) > 2*maxText || !strings.Contains(output, "^[[31m<b>x^[[31m<b>x") || !strings.Contains(output, "bytes are left out here") {
		t.Errorf("a line of 5 MB: %d bytes, %.60q", len(output), output)
	}
	quiet(t, p)
}

// Every link of every page leads to a file that is there: from the list, from a
// trial, and those of the scripts that they load.
func TestPages_Links(t *testing.T) {
	dir := t.TempDir()
	in := run(3)
	played(t, &in.Trials[1], t.TempDir(), 3, "")
	if err := Write(dir, []report.Input{in}); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 800, 600)
	p.Go("file://" + dir + "/index.html")
	p.Until("document.documentElement.dataset.ready !== undefined")
	seen := map[string]bool{}
	look := func(where string) {
		t.Helper()
		var links []string
		p.Eval("[...document.querySelectorAll('[href], [src]')].map((e) => e.getAttribute('href') || e.getAttribute('src'))", &links)
		for _, l := range links {
			file := l
			if n, ok := strings.CutPrefix(l, "#t="); ok {
				file = "data/" + n + ".js"
			}
			if seen[l] = true; file == "#" || file == "" { // the list itself
				continue
			}
			if st, err := os.Stat(filepath.Join(dir, file)); err != nil || !st.Mode().IsRegular() {
				t.Errorf("%s: the link %s leads nowhere: %v", where, l, err)
			}
		}
	}
	look("the list")
	for _, n := range []string{"0", "1", "2"} {
		p.Eval("location.hash = 't="+n+"'", nil)
		p.Until("document.documentElement.dataset.shown === '" + n + "'")
		look("trial " + n)
	}
	for _, l := range []string{"#", "#t=0", "#t=1", "#t=2", "style.css", "xterm/xterm.js", "data/index.js", "data/1.js"} {
		if !seen[l] {
			t.Errorf("no page has the link %s, but %q", l, slices.Sorted(maps.Keys(seen)))
		}
	}
	quiet(t, p)
}

// A trial that is not in the report, or whose file is gone, is said so.
func TestBrowser_Missing(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, []report.Input{run(2)}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "data", "1.js")); err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t, 800, 600)
	for hash, want := range map[string]string{"t=9": "There is no such trial", "t=1": "not beside the page", "t=x": "There is no such trial"} {
		p.Go("file://" + dir + "/index.html")
		p.Eval("location.hash = '"+hash+"'", nil)
		p.Until("document.getElementById('one').innerText.includes('" + want + "')")
	}
}

// What a report of 1,000 trials with their files costs, from the disk to the
// screen: a trial has 20 turns of 2 KB each (docs/performance.md).
func BenchmarkReport(b *testing.B) {
	in, files := run(1000), b.TempDir()
	for i := range in.Trials {
		x := &in.Trials[i]
		played(b, x, filepath.Join(files, x.TrialName), 20, strings.Repeat("0123456789abcde\n", 128))
		x.Config, x.TaskID.Path = []byte("{}"), x.Task
		if err := result.Write(x.Dir, x.Trial); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(x.Dir, result.ConfigFile), []byte(`{"task": {}}`), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		dir, began := b.TempDir(), time.Now()
		read, err := report.Read(files)
		if err != nil || len(read.Trials) != 1000 {
			b.Fatal(len(read.Trials), err)
		}
		if err := Write(dir, []report.Input{read}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "write-s")
		p := browser.Open(b, 1400, 1100)
		p.Go("file://" + dir + "/index.html")
		p.Until("document.documentElement.dataset.ready !== undefined")
		for name, expression := range map[string]string{
			"ready-ms": "Number(document.documentElement.dataset.ready)",
			"paint-ms": "performance.getEntriesByName('first-contentful-paint')[0].startTime",
			"sort-ms":  "(async () => { const t = performance.now(); [...document.querySelectorAll('.trials th')].find((e) => e.textContent.startsWith('Time')).click(); await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); return performance.now() - t; })()",
		} {
			var ms float64
			p.Until("performance.getEntriesByName('first-contentful-paint').length > 0")
			p.Eval(expression, &ms)
			b.ReportMetric(ms, name)
		}
		var ms float64
		p.Eval("(async () => { const t = performance.now(); location.hash = 't=7'; while (document.documentElement.dataset.shown !== '7') await new Promise(requestAnimationFrame); return performance.now() - t; })()", &ms)
		b.ReportMetric(ms, "trial-ms")
	}
}
