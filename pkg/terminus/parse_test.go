package terminus

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// kinds name our messages as testdata/harbor.jsonl names Harbor's.
var kinds = []struct {
	kind string
	says *regexp.Regexp
}{
	{"fix_brace", regexp.MustCompile(`^AUTO-CORRECTED: the closing brace`)},
	{"fix_object", regexp.MustCompile(`^AUTO-CORRECTED: the JSON was taken`)},
	{"before", regexp.MustCompile(`^there is text before`)},
	{"after", regexp.MustCompile(`^there is text after`)},
	{"type_analysis", regexp.MustCompile(`^field 'analysis' should`)},
	{"type_plan", regexp.MustCompile(`^field 'plan' should`)},
	{"order", regexp.MustCompile(`^the fields come`)},
	{"type_complete", regexp.MustCompile(`^field 'task_complete'`)},
	{"duration_missing", regexp.MustCompile(`^command \d+ has no duration`)},
	{"duration_invalid", regexp.MustCompile(`^command \d+: its duration`)},
	{"unknown", regexp.MustCompile(`^command \d+ has unknown`)},
	{"newline", regexp.MustCompile(`^command \d+ does not end`)},
	{"cmd_object", regexp.MustCompile(`^command \d+ must be`)},
	{"cmd_missing", regexp.MustCompile(`^command \d+ has no field`)},
	{"cmd_string", regexp.MustCompile(`^command \d+: 'keystrokes'`)},
	{"no_object", regexp.MustCompile(`^no JSON object`)},
	{"invalid", regexp.MustCompile(`^invalid JSON`)},
	{"missing", regexp.MustCompile(`^required fields`)},
	{"too_long", regexp.MustCompile(`^the reply has \d+ bytes`)},
	{"array", regexp.MustCompile(`^field 'commands' must`)},
}

func kind(t *testing.T, message string) string {
	t.Helper()
	for _, k := range kinds {
		if k.says.MatchString(message) {
			return k.kind
		}
	}
	if message != "" {
		t.Errorf("a message of no kind: %q", message)
	}
	return ""
}

// harbor is what Harbor 0.26.0's parser made of a reply. Waits are as its
// agent takes them: at most 60.
type harbor struct {
	Reply    string    `json:"reply"`
	Crash    string    `json:"crash,omitempty"`
	Error    string    `json:"error"`
	Warnings []string  `json:"warnings"` // sorted
	Complete bool      `json:"complete"`
	Keys     []string  `json:"keys"`
	Wait     []float64 `json:"wait"`
	Analysis *string   `json:"analysis"` // null where it is no string
	Plan     *string   `json:"plan"`
}

func read(t *testing.T, reply string) harbor {
	p := Parse(reply)
	h := harbor{Reply: reply, Error: kind(t, p.Error), Warnings: []string{}, Complete: p.Complete, Keys: []string{}, Wait: []float64{}, Analysis: &p.Analysis, Plan: &p.Plan}
	for _, w := range p.Warnings {
		h.Warnings = append(h.Warnings, kind(t, w))
	}
	slices.Sort(h.Warnings)
	for _, c := range p.Commands {
		h.Keys = append(h.Keys, c.Keys)
		h.Wait = append(h.Wait, c.Wait.Seconds())
	}
	return h
}

// TestAsHarbor holds the parser against Harbor's, run once over these replies.
// Those that it reads otherwise are in testdata/differs.jsonl, with what it
// makes of them, and docs/terminus.md says why.
func TestAsHarbor(t *testing.T) {
	differs := map[string]harbor{}
	for _, h := range replies(t, "testdata/differs.jsonl") {
		differs[h.Reply] = h
	}
	all := replies(t, "testdata/harbor.jsonl")
	if len(all) < 500 {
		t.Errorf("only %d replies", len(all))
	}
	var ours bytes.Buffer
	for _, theirs := range all {
		got, want := read(t, theirs.Reply), theirs
		if theirs.Analysis == nil {
			got.Analysis = nil
		}
		if theirs.Plan == nil {
			got.Plan = nil
		}
		if !reflect.DeepEqual(got, theirs) {
			line, _ := json.Marshal(got)
			ours.Write(append(line, '\n'))
		}
		if d, ok := differs[theirs.Reply]; ok {
			if reflect.DeepEqual(d, theirs) {
				t.Errorf("no difference any more: %s", theirs.Reply)
			}
			want = d
		}
		if !reflect.DeepEqual(got, want) {
			a, _ := json.Marshal(want)
			b, _ := json.Marshal(got)
			t.Errorf("\nwant %s\ngot  %s", a, b)
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile("testdata/differs.jsonl", ours.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func replies(t *testing.T, path string) []harbor {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []harbor
	for d := json.NewDecoder(bytes.NewReader(data)); d.More(); {
		var h harbor
		if err := d.Decode(&h); err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	return all
}

// However long a reply is, it takes no more than so much work.
func TestParse_Longest(t *testing.T) {
	whole := func(n int) string {
		head, tail := `{"analysis":"`, `","plan":"p","commands":[]}`
		return head + strings.Repeat("a", n-len(head)-len(tail)) + tail
	}
	if p := Parse(whole(MaxReply)); p.Error != "" {
		t.Error(p.Error)
	}
	if p := Parse(whole(MaxReply + 1)); !strings.Contains(p.Error, "smaller steps") {
		t.Errorf("error %q", p.Error)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"analysis":"a","plan":"p","commands":[{"keystrokes":"ls\n","duration":0.1}],"task_complete":true}`)
	f.Add("```json\n{\"analysis\":\"{\",\"plan\":{},\"commands\":[null]}\n```")
	f.Add(`{"a":{"b":[{`)
	f.Fuzz(func(t *testing.T, reply string) {
		p := Parse(reply)
		if p.Error != "" && (p.Commands != nil || p.Complete) {
			t.Errorf("an error, and commands all the same: %+v", p)
		}
		for _, m := range append(p.Warnings, p.Error) {
			kind(t, m)
			if !utf8.ValidString(m) && utf8.ValidString(reply) {
				t.Errorf("a message that is no text: %q", m)
			}
		}
		for _, c := range p.Commands {
			if c.Wait < 0 || c.Wait > MaxWait {
				t.Errorf("waits %s", c.Wait)
			}
		}
		if p.Error != "" {
			return
		}
		// What was understood is understood the same when it is written down well.
		type command struct {
			Keys string  `json:"keystrokes"`
			Wait float64 `json:"duration"`
		}
		again := struct {
			Analysis string    `json:"analysis"`
			Plan     string    `json:"plan"`
			Commands []command `json:"commands"`
			Complete bool      `json:"task_complete"`
		}{p.Analysis, p.Plan, []command{}, p.Complete}
		for _, c := range p.Commands {
			again.Commands = append(again.Commands, command{c.Keys, c.Wait.Seconds()})
		}
		data, err := json.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		q := Parse(string(data))
		if q.Error != "" || len(q.Commands) != len(p.Commands) || q.Complete != p.Complete || q.Plan != p.Plan && utf8.ValidString(p.Plan) {
			t.Errorf("%s is read as %+v", data, q)
		}
		for i, c := range q.Commands {
			if c.Keys != p.Commands[i].Keys || (c.Wait-p.Commands[i].Wait).Abs() > time.Microsecond {
				t.Errorf("command %d is %+v, was %+v", i, c, p.Commands[i])
			}
		}
	})
}
