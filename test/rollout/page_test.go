package rollout

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/pkg/trajectory"
	"fence/test/browser"
	ms "fence/test/modelserver"
)

// act is a reply, and what the terminal is to have shown before the next one.
type act struct {
	reply ms.Answer
	shows string
}

// acts are the answers of a model that waits, turn by turn, until the terminal
// has shown what each of its replies is to bring about.
func acts(all ...act) ms.Answer {
	n := 0
	return func(w http.ResponseWriter, r ms.Request) {
		if n > 0 && !slices.ContainsFunc(r.Messages, func(m ms.Message) bool { return m.Role == "user" && strings.Contains(m.Content, all[n-1].shows) }) {
			turn("")(w, r)
			return
		}
		n = min(n+1, len(all))
		all[n-1].reply(w, r)
	}
}

// thinks is an answer with thoughts beside the reply.
func thinks(thoughts, reply string) ms.Answer {
	body, err := json.Marshal(map[string]any{
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": reply, "reasoning_content": thoughts}}},
		"usage":   map[string]any{"prompt_tokens": 1234, "completion_tokens": 56},
	})
	if err != nil {
		panic(err) // strings
	}
	return ms.Raw(string(body))
}

// The folder of a real run as pages in a browser: one trial of a hostile model
// that is played again to its end, one whose server went away.
func TestReport_Pages(t *testing.T) {
	p := newPlace(t)
	const evil = `</script><script>document.title="owned"</script><img src=x onerror=document.title="owned">`
	p.task("plays", "", "/bin/cat /it\necho 'the verifier says "+strings.ReplaceAll(evil, `"`, "")+"'\nprintf '\\033]0;owned\\a\\377\\n'\n"+rewards, "")
	p.task("gone", "", rewards, "")
	quoted := strings.NewReplacer(`<`, `\074`, `"`, `\042`).Replace(evil) // in octal, so that it is there only where it was printed
	s := ms.Start(t, acts(
		act{thinks("I think "+evil, ms.Turn("Look around. "+evil, false, "echo one-$((1+1))-three >/it; cat /it\n")), "one-2-three"},
		act{turn("printf '" + quoted + "\\n\\033[31mred\\033[0m \\377\\376 \\342\\200\\256gpj.exe\\n\\033]0;owned\\a'\n"), "gpj.exe\n/ #"},
		act{turn("C-c", "rm /bin/cat; printf '#!/bin/busybox sh\\necho trojan\\n' >/bin/cat; chmod +x /bin/cat; echo swapped-$((1+1))\n"), "swapped-2"},
		act{turn("head -c 5000000 /dev/zero | tr '\\0' x; echo -long-$((1+1))\n"), "-long-2"},
		// The last screen is known to the letter: nothing is left of what was before.
		act{turn("clear; printf '\\033[5;11Hfive, eleven\\033[7;1H\\033[32mthe-%s\\033[0m\\n\\n' end\n"), "the-end\n\n/ #"},
		act{done, ""}))
	played := p.model(s.Base, "--include", "plays", "--out", "out/run", "--max-turns", "1000").records["terminus plays"]
	if word(played) != "1" || len(played.Tainted) != 1 || played.Tainted[0].Path != "/bin/cat" {
		t.Fatalf("%s %+v %+v", word(played), played.Fault, played.Tainted)
	}
	s = ms.Start(t, turn("touch /it\n"), ms.Status(http.StatusInternalServerError, `{"error":{"message":"the GPU is on fire"}}`))
	gone := p.model(s.Base, "--retries", "0", "--include", "gone", "--out", "out/b").records["terminus gone"]
	if word(gone) != "model_server_gone" {
		t.Fatalf("%s", word(gone))
	}
	for range 2 { // and over the earlier one
		if r := p.run(p.command("report", "out/run", "out/b", "--html", "out/page")); r.code != 0 {
			t.Fatalf("%d %s", r.code, r.stderr)
		}
	}

	b := browser.Open(t, 1500, 1200)
	b.Go("file://" + p.path("out/page/index.html"))
	b.Until("document.documentElement.dataset.ready !== undefined")
	picture := func(name string) {
		if dir := os.Getenv("PAGE_PICTURES"); dir != "" {
			b.Picture(filepath.Join(dir, name+".png"))
		}
	}
	is := func(what, expression string, want any) {
		t.Helper()
		var got any
		b.Eval(expression, &got)
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	has := func(what, selector string, texts ...string) {
		t.Helper()
		var got string
		b.Eval("[...document.querySelectorAll('"+selector+"')].map((e) => e.textContent).join('\\n')", &got)
		for _, want := range texts {
			if !strings.Contains(got, want) {
				t.Errorf("%s has no %q: %.2000q", what, want, got)
			}
		}
	}
	picture("run-list")
	is("trials", "document.querySelectorAll('.trials tbody tr').length", 2.0)
	is("plots, a bar for each run", "document.querySelectorAll('figure svg').length", 6.0)
	is("bars have a height", "[...document.querySelectorAll('figure rect')].every((r) => r.getBoundingClientRect().height > 0)", true)
	has("the list", ".trials tbody tr", "tainted", "model_server_gone (infra)")

	// The trial that broke.
	open := func(name string) {
		t.Helper()
		b.Eval("delete document.documentElement.dataset.shown; location.hash = [...document.querySelectorAll('.trials a')].find((a) => a.textContent === '"+name+"').getAttribute('href')", nil)
		b.Until("document.documentElement.dataset.shown !== undefined")
	}
	open(gone.TrialName)
	has("the fault", ".notice.fault", "model_server_gone", "cause: infra", "the GPU is on fire")
	picture("run-gone")
	b.Eval("location.hash = ''", nil)
	b.Until("!document.getElementById('list').hidden")

	open(played.TrialName)
	has("the taint", ".notice.failed", "/bin/cat")
	has("the thoughts", "#turn-1 .thoughts", "I think "+evil)
	has("the message", "#turn-1 .message", "Look around. "+evil)
	has("the keys", "#turn-1 .keys", "echo one-$((1+1))-three >/it; cat /it⏎")
	has("the name of a key", ".keys", "C-c")
	has("what was seen", ".turn .seen", "one-2-three", evil, "red", strings.Repeat("x", 1000))
	has("the verifier", "pre.output", "trojan", "the verifier says "+strings.ReplaceAll(evil, `"`, ""), "^[]0;owned^G\ufffd")

	// The terminal, played to its end from a turn before it.
	const rows = "[...document.querySelectorAll('.xterm-rows > div')].map((e) => e.textContent.replace(/\\u00a0/g, ' ').trimEnd()).join('\\n').trimEnd()"
	last := "\n\n\n\n          five, eleven\n\nthe-end\n\n/ #"
	b.Until(rows + " === " + js(t, last))
	picture("run-trial")
	// At the mark of a turn stands what it was shown, and nothing that it typed.
	for _, at := range []struct{ keys, shows, not string }{{"echo one-", "/ #", "one-"}, {"printf '", "one-2-three", "printf"}} {
		i := slices.IndexFunc(p.turns(played), func(x trajectory.Turn) bool {
			return len(x.Commands) > 0 && strings.HasPrefix(x.Commands[0].Keystrokes, at.keys)
		})
		b.Eval(fmt.Sprintf("[...document.querySelectorAll('.moments button')].find((b) => b.textContent === 'turn %d').click()", i+1), nil)
		b.Until(rows + ".includes(" + js(t, at.shows) + ") && !" + rows + ".includes('five, eleven')")
		is(fmt.Sprintf("turn %d is ahead of itself", i+1), rows+".includes("+js(t, at.not)+")", false)
	}
	b.Eval("{ const s = document.querySelector('.controls select'); s.value = '20'; s.dispatchEvent(new Event('change')); document.querySelector('.controls button').click(); }", nil)
	b.Until("document.querySelector('.controls button').textContent === 'play'")
	b.Until(rows + " === " + js(t, last))

	is("title", "document.title", played.TrialName)
	is("markup", "document.querySelectorAll('main script, main img, main b b').length", 0.0)
	for _, said := range b.Said() {
		t.Errorf("the page said: %.500s", said)
	}
}

func js(t *testing.T, s string) string {
	t.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
