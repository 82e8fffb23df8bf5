package trajectory_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"fence/pkg/trajectory"
	"fence/test/clitest"
)

func n(i int) *int { return &i }

var began = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// episode is two turns, a hand-over, a reply that could not be read, and the
// end; the third turn has no token ids.
func episode() []trajectory.Turn {
	turn := func(i int, kind string, segment int, prompt, reply string) trajectory.Turn {
		return trajectory.Turn{
			Trial: "task__abc", Turn: i, Kind: kind, Segment: segment, StartedAt: began.Add(time.Duration(i) * time.Minute),
			Prompt: prompt, Reply: reply, Finish: "stop", Tries: 1,
			PromptTokens: n(100), CompletionTokens: n(2), CachedTokens: n(50),
			PromptIDs: []int{1, 2, 3}, CompletionIDs: []int{4, 5}, Logprobs: []float64{-0.5, -1e-7},
		}
	}
	one := turn(1, "turn", 1, "the task [\n1,\n2\n]", "{one}")
	one.Analysis, one.Plan, one.Output = "<a>", "p", "$ ls"
	one.Commands = []trajectory.Command{{Keystrokes: "ls\n", Duration: 0.1}}
	two := turn(2, "turn", 1, "$ ls", "{two}")
	two.Plan, two.Output, two.Fence = "q", "Permission denied", []string{"Permission denied"}
	two.Commands = []trajectory.Command{{Keystrokes: "cat x\n", Duration: 1}, {Keystrokes: "C-c", Duration: 60}}
	three := turn(3, "turn", 2, "answers", "{thr")
	three.Error, three.Warnings, three.Reasoning = "invalid JSON", []string{"w"}, "hm"
	three.PromptIDs, three.CompletionIDs, three.Logprobs, three.CachedTokens = nil, nil, nil, nil
	four := turn(4, "turn", 2, "ERROR", "{four}")
	four.TaskComplete, four.Stop, four.Output = true, "done", "end"
	return []trajectory.Turn{one, two,
		turn(3, "summary", 1, "sum up", "s"), turn(3, "questions", 1, "ask", "q?"), turn(3, "answers", 1, "answer", "a!"),
		three, four}
}

func TestTurnsComeBackAsTheyWere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "turns.jsonl")
	log, err := trajectory.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	turns := episode()
	for _, turn := range turns {
		if err := log.Add(turn); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if err := clitest.Validate(t, "rollout.turn", []byte(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	clitest.NamesEveryField(t, "rollout.turn", reflect.TypeFor[trajectory.Turn]())
	if !strings.Contains(string(data), `"analysis":"<a>"`) || !strings.Contains(string(data), `"prompt_token_ids":null`) {
		t.Errorf("written as %s", data)
	}
	for cut, want := range map[int]int{0: len(turns), 1: len(turns) - 1, 40: len(turns) - 1} {
		got, err := trajectory.Read(bytes.NewReader(data[:len(data)-cut]))
		if err != nil || len(got) != want {
			t.Errorf("cut by %d bytes: %d turns, %v", cut, len(got), err)
		}
		if got[0].Prompt != turns[0].Prompt || !reflect.DeepEqual(got[1].Commands, turns[1].Commands) || !reflect.DeepEqual(got[2].Logprobs, turns[2].Logprobs) {
			t.Errorf("read as %+v", got[0])
		}
	}
	for _, bad := range []string{"{}\n", "x\n", `{"schema":"rollout.turn/v1","more":1}` + "\n"} {
		if _, err := trajectory.Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func build(t *testing.T, turns []trajectory.Turn) (trajectory.Trajectory, []byte) {
	t.Helper()
	tr := trajectory.Build("id", trajectory.Agent{Name: "terminus", Version: "1", ModelName: "m", Extra: map[string]string{"parser": "json"}}, "the task [\n1,\n2\n]", turns)
	path := filepath.Join(t.TempDir(), "trajectory.json")
	if err := tr.Write(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := clitest.Validate(t, "atif", data); err != nil {
		t.Errorf("%v\n%s", err, data)
	}
	return tr, data
}

func TestATIF(t *testing.T) {
	tr, data := build(t, episode())
	type row struct {
		source, message, observed string
		calls, refs               int
	}
	var got []row
	for _, s := range tr.Steps {
		r := row{source: s.Source, message: s.Message, calls: len(s.ToolCalls)}
		if s.Observation != nil {
			r.observed, r.refs = s.Observation.Results[0].Content, len(s.Observation.Results[0].Subagents)
		}
		got = append(got, r)
	}
	want := []row{
		{"user", "the task [\n1,\n2\n]", "", 0, 0},
		{"agent", "Analysis: <a>\nPlan: p", "$ ls", 1, 0},
		{"agent", "Plan: q", "Permission denied", 2, 0},
		{"system", "The conversation had become too long and was handed over.", "", 0, 3},
		{"user", "answers", "", 0, 0},
		{"agent", "{thr", "ERROR", 0, 0},
		{"agent", "", "end", 1, 0},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("steps %+v,\nwant %+v", got, want)
	}
	if id := tr.Steps[1].Observation.Results[0].SourceCallID; id != "call_0_1" {
		t.Errorf("what one command showed is under %q", id)
	}
	if id := tr.Steps[2].Observation.Results[0].SourceCallID; id != "" {
		t.Errorf("what two commands showed is under %q", id)
	}
	if m := tr.FinalMetrics; *m.PromptTokens != 700 || *m.CompletionTokens != 14 || *m.CachedTokens != 300 || m.Steps != 7 {
		t.Errorf("%+v", m)
	}
	for _, s := range []string{`"prompt_token_ids": [1, 2, 3]`, `"logprobs": [-0.5, -1e-7]`, `"message": "the task [\n1,\n2\n]"`, "\n  \"agent\": {\n"} {
		if !strings.Contains(string(data), s) {
			t.Errorf("no %s in %s", s, data)
		}
	}
	var again map[string]any
	if err := json.Unmarshal(data, &again); err != nil {
		t.Error(err)
	}
}

func TestATIFOfAnAgentThatEndedEarly(t *testing.T) {
	build(t, episode()[:1])
	tr, _ := build(t, episode()[:4])
	if last := tr.Steps[len(tr.Steps)-1]; last.Source != "system" || len(last.Observation.Results[0].Subagents) != 2 {
		t.Errorf("%+v", last)
	}
	if tr, _ := build(t, nil); len(tr.Steps) != 1 || tr.Steps[0].Source != "user" || tr.FinalMetrics.Steps != 1 {
		t.Errorf("of a model that never answered: %+v", tr.Steps)
	}
}

// The schema refuses what Harbor's own models refuse.
func TestTheSchemaRefuses(t *testing.T) {
	_, data := build(t, episode())
	for name, change := range map[string][2]string{
		"another field":           {`"session_id"`, `"sesion"`},
		"another source":          {`"source": "system"`, `"source": "tool"`},
		"metrics of a user":       {`"source": "agent"`, `"source": "user"`},
		"another version":         {`ATIF-v1.7`, `ATIF-v9`},
		"a subagent without a id": {`"trajectory_id": "id-summary-3"`, `"notes": "x"`},
	} {
		bad := strings.Replace(string(data), change[0], change[1], 1)
		if bad == string(data) {
			t.Errorf("%s: nothing to change", name)
		} else if clitest.Validate(t, "atif", []byte(bad)) == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestDetails(t *testing.T) {
	got := trajectory.Details(episode())
	want := []string{
		`{"prompt_token_ids":[[1,2,3],[1,2,3]],"completion_token_ids":[[4,5],[4,5]],"logprobs":[[-0.5,-1e-7],[-0.5,-1e-7]]}`,
		`{"prompt_token_ids":[[],[1,2,3]],"completion_token_ids":[[],[4,5]],"logprobs":[[],[-0.5,-1e-7]]}`,
		`{"prompt_token_ids":[[1,2,3]],"completion_token_ids":[[4,5]],"logprobs":[[-0.5,-1e-7]]}`,
	}
	want = append(want, want[2], want[2])
	if len(got) != len(want) {
		t.Fatalf("%s", got)
	}
	for i := range want {
		if string(got[i]) != want[i] {
			t.Errorf("%d: %s, want %s", i, got[i], want[i])
		}
	}
	var none []trajectory.Turn
	for _, turn := range episode() {
		turn.PromptIDs, turn.CompletionIDs, turn.Logprobs = nil, nil, nil
		none = append(none, turn)
	}
	if got := trajectory.Details(none); got != nil {
		t.Errorf("details of turns without ids: %s", got)
	}
}

func TestNobodyCounted(t *testing.T) {
	var sum trajectory.Tokens
	sum.Add(trajectory.Turn{})
	if sum != (trajectory.Tokens{}) {
		t.Errorf("%+v", sum)
	}
}

type clock struct{ now time.Time }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }
func (c *clock) Now() time.Time       { return c.now }

func TestCast(t *testing.T) {
	var out bytes.Buffer
	now := &clock{began}
	now.pass(700 * time.Millisecond) // the header says the second; the events count from it
	c, err := trajectory.NewCast(&out, 160, 40, "a <task>", 0, now.Now)
	if err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		if k, err := c.Write([]byte(s)); err != nil || k != len(s) {
			t.Errorf("%d, %v", k, err)
		}
	}
	write("h\xc3")
	now.pass(time.Microsecond)
	write("\xa9\x1b[3")
	now.pass(1500 * time.Millisecond)
	write("1m\xf0\x9f")
	write("\x98")
	write("\x80\xff!")
	c.Input("ls\n")
	c.Marker("turn 2")
	now.pass(-time.Hour)
	write("\xe2\x82")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	want := `{"version":2,"width":160,"height":40,"timestamp":1796040000,"title":"a <task>","env":{"SHELL":"/bin/bash","TERM":"xterm-256color"}}
[0.700000,"o","h"]
[0.700001,"o","é"]
[2.200001,"o","\u001b[31m"]
[2.200001,"o","😀�!"]
[2.200001,"i","ls\n"]
[2.200001,"m","turn 2"]
[0.000000,"o","��"]
`
	if out.String() != want {
		t.Errorf("got  %s\nwant %s", &out, want)
	}
}

// The limit is one of the file, whatever becomes of a character in it.
func TestACastHasALimit(t *testing.T) {
	for _, c := range []string{"x", "<", "\t", "\u2028", "\xff"} {
		var out bytes.Buffer
		cast, _ := trajectory.NewCast(&out, 80, 24, "", 10000, time.Now)
		for range 1000 {
			cast.Write([]byte(strings.Repeat(c, 100)))
			cast.Input(c)
			cast.Marker(c)
		}
		lines := strings.SplitAfter(out.String(), "\n")
		all, last := out.Len(), lines[len(lines)-2]
		if all -= len(last); all > 10000 || all < 9000 || strings.Count(out.String(), "more is not recorded") != 1 || !strings.Contains(last, "more is not recorded") {
			t.Errorf("%q: %d bytes, and %q", c, all, last)
		}
	}
}

// onlyShows are the sequences that a recording may have.
var onlyShows = regexp.MustCompile(`\x1b(?:[78DEHM]|[()][0AB]|\[(?:[0-9;:]*[@A-IK-MPSTXZ\x60abdefmrsu]|[0-24-9;:]*J|(?:4|20)?(?:;(?:4|20))*[hl]|\?(?:5|6|7|12|25|47|104[789])(?:;(?:5|6|7|12|25|47|104[789]))*[hl]))`)

// What a program asks of a terminal besides showing something does not reach
// whoever watches.
func TestACastOnlyShows(t *testing.T) {
	for in, want := range map[string]string{
		"\x1b]0;owned\a|\x1b]52;c;b3duZWQ=\x1b\\|\u009d52;c;x\u009c|":            "||52;c;x|",
		"\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\":                    "link",
		"\x1bP+q544e\x1b\\a\x1b_x\x1b\\b\x1b^x\x1b\\c\x1bXx\x1b\\d\x1bkt\x1b\\e": "abcde",
		"a\x1b[6n\x1b[c\x1b[>c\x1b[?6n\x05\x1bZb":                                "ab",
		"a\x1b[?1000h\x1b[?1006;1049h\x1b[?2004h\x1b[?1hb":                       "ab",
		"\x1b[?1049h\x1b[?25l\x1b[?7;25h":                                        "\x1b[?1049h\x1b[?25l\x1b[?7;25h",
		"a\x1b[8;1;1tb\x1b[3Jc\x1b[!pd\a":                                        "abcd",
		"a\x1b7\x1bcb":                                                           "a\x1b7\x1b[4l\x1b[?5;6l\x1b[?7;25h\x1b[m\x1b(B\x0f\x1b[r\x1b[H\x1b[2J\x1b7b",
		"\x1b[1;38;2;255;120;0mx\x1b[0m\x1b[4:3my\x1b[2J\x1b[H\x1b(0q\x1b(B":     "\x1b[1;38;2;255;120;0mx\x1b[0m\x1b[4:3my\x1b[2J\x1b[H\x1b(0q\x1b(B",
		"\x1b[31\nm日本\x1b[3\x18m":                                                "\n\x1b[31m日本m",
		"\xc2\x1b[6n\x9d52;x":                                                    "\ufffd\ufffd52;x", // no half of a character joins another
		// Where a string ends, tmux says.
		"\x1b]0;t\x1b[31ma\x1b]0;t\x18b\x1b_x\x1ac\x1b^x\ay\x1b\\d":            "\x1b[31mabcd",
		"\x1bPqx\x18\x1b[m\x1b\x1b\\\a\x1b\\a\x1bP1:q\x1b[31mb\x1bP1\x1b[32mc": "a\x1b[31mb\x1b[32mc",
		"\x1b[3é1ma\x1b[" + strings.Repeat("1", 300) + "mb":                    "\x1b[31mab",
		"x\x1b[3b\x1b[3by\x1b[m\x1b[3bz\x1b]0;t\a\x1b[3b\r\x1b[3b":             "x\x1b[3by\x1b[mz\r", // nothing else came in between
		// No number is beyond the terminal's size, and a character has few marks.
		"\x1b[2147483647S\x1b[99999999999999999999;7H\x1b[24L\x1b[;81H": "\x1b[24S\x1b[80;7H\x1b[24L\x1b[;80H",
		"\x1b[999;38:2::256:0:1mx\x1b[1000b\x1b[1000@\x1b[1048l":        "\x1b[255;38:2::255:0:1mx\x1b[80b\x1b[80@",
		"e" + strings.Repeat("\u0301\x1b[m\a\u200d", 9) + "o\u0301":     "e" + strings.Repeat("\u0301\x1b[m\u200d", 4) + strings.Repeat("\x1b[m", 5) + "o\u0301",
	} {
		for at := range len(in) + 1 {
			var out bytes.Buffer
			c, _ := trajectory.NewCast(&out, 80, 24, "", 0, time.Now)
			c.Write([]byte(in[:at]))
			c.Write([]byte(in[at:]))
			c.Close()
			got := ""
			for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
				var e []any
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				got += e[2].(string)
			}
			if got != want {
				t.Errorf("%q, cut at %d, is recorded as %q, want %q", in, at, got, want)
				break
			}
		}
	}
}

// A string that nobody ends hides what follows for as long as tmux hides it
// from the model: five seconds.
func TestACastOfAStringWithoutAnEnd(t *testing.T) {
	for _, begin := range []string{"]0;", "Pq", "P1", "P1:", "_x", "^x", "Xx", "kx"} {
		var out bytes.Buffer
		now := &clock{began}
		c, _ := trajectory.NewCast(&out, 80, 24, "", 0, now.Now)
		for i, s := range []string{"\x1b" + begin[:1], begin[1:], "hidden", "hidden", "seen", "seen\x1b" + begin, "hidden"} {
			if i == 3 {
				now.pass(5*time.Second - time.Nanosecond)
			}
			if i == 4 {
				now.pass(time.Nanosecond)
			}
			c.Write([]byte(s))
		}
		if got := out.String(); strings.Contains(got, "hidden") || strings.Count(got, "seen") != 2 {
			t.Errorf("ESC %s: %s", begin, got)
		}
	}
}

// What drawing takes is counted: a kilobyte of what is dear is more than one of
// text.
func TestPlainCountsWork(t *testing.T) {
	work := func(s string) int {
		p := trajectory.Plain{Width: 160, Height: 40}
		p.Filter(0, strings.Repeat(s, 1000/len(s)))
		return p.Work
	}
	text := work("x")
	if text != 1000 {
		t.Errorf("of a letter %d", text)
	}
	for s, times := range map[string]int{"\n": 20, "\x1b[S": 50, "\x1b[999L": 1000, "\x1b[2J": 200, "\x1b[?47h\x1b[?47l": 500, "x\x1b[999b": 500, "\x1bM": 100, "e\u0301\u0301\u0301": 2, "\x1b[4h" + strings.Repeat("x", 995): 100} {
		if got := work(s); got < times*text {
			t.Errorf("of %.20q %d, less than %d times a letter's", s, got, times)
		}
	}
}

var number = regexp.MustCompile(`\d+`)

func isMark(r rune) bool { return unicode.In(r, unicode.M, unicode.Cf) || r >= 0x1160 && r < 0x1200 }

func FuzzCast(f *testing.F) {
	f.Add([]byte("h\xc3\xa9\xff"), 2)
	f.Add([]byte("\x1b[2147483647Se\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\x1b]0;t\x1b[1;999H\x1bPq\x1b\x1b\\x"), 20)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		var out bytes.Buffer
		c, _ := trajectory.NewCast(&out, 80, 24, "", 0, time.Now)
		if at < 0 || at > len(data) {
			at = len(data)
		}
		c.Write(data[:at])
		c.Write(data[at:])
		c.Close()
		if !utf8.Valid(out.Bytes()) {
			t.Fatalf("not UTF-8: %q", &out)
		}
		var text strings.Builder
		for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
			var e []any
			if i == 0 {
				continue
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || len(e) != 3 {
				t.Fatalf("line %q: %v", line, err)
			}
			text.WriteString(e[2].(string))
		}
		if utf8.Valid(data) && !bytes.ContainsFunc(data, func(r rune) bool { return unicode.IsControl(r) || isMark(r) }) && text.String() != string(data) {
			t.Errorf("%q is recorded as %q", data, text.String())
		}
		if rest := onlyShows.ReplaceAllString(text.String(), ""); strings.ContainsFunc(rest, func(r rune) bool { return r < 7 || r == '\a' || r == 0x1b || r >= 0x7f && r < 0xa0 }) {
			t.Errorf("%q is recorded as %q", data, text.String())
		}
		for _, seq := range onlyShows.FindAllString(text.String(), -1) {
			if strings.HasPrefix(seq, "\x1b[") && !strings.HasPrefix(seq, "\x1b[?") && slices.ContainsFunc(number.FindAllString(seq, -1), func(n string) bool {
				i, err := strconv.Atoi(n)
				return err != nil || i > 255 || i > 80 && !strings.HasSuffix(seq, "m")
			}) {
				t.Errorf("%q is recorded as %q", data, seq)
			}
		}
		if text.Len() > 3*len(data) {
			t.Errorf("of %d bytes %d are recorded", len(data), text.Len())
		}
		marks := 0
		for _, r := range onlyShows.ReplaceAllString(text.String(), "") {
			if marks++; !isMark(r) {
				marks = 0
			}
			if marks > 8 {
				t.Fatalf("%q is recorded as %q", data, text.String())
			}
		}
		// A reader that takes the same care finds nothing more to take out.
		again := trajectory.Plain{Width: 80, Height: 24}
		if got := again.Filter(0, text.String()); got != text.String() {
			t.Errorf("%q is recorded as %q, and read as %q", data, text.String(), got)
		}
	})
}
