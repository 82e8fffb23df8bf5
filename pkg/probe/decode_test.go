package probe

import (
	"bytes"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

// aReport makes a report by hand, with a summary that adds up.
func aReport(label string, checks ...Finding) Report {
	r := Report{
		Schema: ReportSchema,
		Tool:   Tool{Name: "probe", Version: "0.1.0"},
		Run:    Run{Label: label, Time: "2026-11-29T16:00:00Z", DurationMS: 2140, Argv: []string{"probe"}},
		Subject: Subject{
			Hostname: "node17", BootID: "c0ffee00-0000-4000-8000-000000000001", Kernel: "6.12.0-el10", Arch: "x86_64",
			UID: 1003, GID: 1003, Runtime: "apptainer", Slurm: map[string]string{"job_id": "123"},
		},
		Controls: Controls{
			NoNewPrivs: true, Landlock: LandlockState{ABI: 6}, CapEff: "0000000000000000", CapBnd: "0000000000000000",
			Namespaces: map[string]uint64{"net": 4026531833, "user": 4026532001},
		},
		Checks:  checks,
		Summary: map[Outcome]int{},
	}
	if label == "host" {
		r.Run.Time = "2026-11-29T15:59:30Z"
		r.Subject.Runtime = ""
		r.Controls.Namespaces["user"] = 4026531837
	}
	if label == "after" {
		r.Run.Time = "2026-11-29T16:00:09Z"
		r.Controls.Seccomp = SeccompState{Mode: 2, Filters: 1}
		r.Controls.Landlock.Layers = 1
	}
	for _, f := range checks {
		r.Summary[f.Outcome]++
	}
	return r
}

// saw is a finding: "id[target]", what came of it, and perhaps the
// mechanism, the errno and the evidence.
func saw(key string, o Outcome, more ...string) Finding {
	id, target, _ := strings.Cut(strings.TrimSuffix(key, "]"), "[")
	group, _, _ := strings.Cut(id, ".")
	f := Finding{ID: id, Target: target, Group: group, Severity: "medium", Outcome: o, ElapsedMS: 0.25}
	for i, to := range []*string{&f.Mechanism, &f.Errno, &f.Evidence} {
		if i < len(more) {
			*to = more[i]
		}
	}
	if strings.HasPrefix(id, "work.") || id == "fs.task.write" {
		f.Severity = "info"
	}
	return f
}

func text(t testing.TB, r Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDecode(t *testing.T) {
	want := aReport("before", saw("net.mptcp[canary:127.0.0.1:39011]", Denied, "seccomp_errno", "EPERM", "socket()=-1"), saw("ctl.user", Info))
	in := text(t, want)
	got, err := Decode("before.json", strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if again := text(t, got); again != in {
		t.Errorf("printed again it differs:\n%s", again)
	}
}

// The zero report prints as whole JSON, without a null that no reader takes.
func TestReport_WriteZero(t *testing.T) {
	if s := text(t, Report{}); strings.Contains(s, "null") {
		t.Error(s)
	}
}

func TestDecode_Refuses(t *testing.T) {
	good := text(t, aReport("before", saw("net.mptcp[a]", Denied), saw("net.mptcp[b]", Reachable)))
	swap := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("no %q in %s", from, good)
		}
		return strings.Replace(good, from, to, 1)
	}
	for _, tc := range []struct{ in, want string }{
		{"", "b.json:1: empty"},
		{"INFO:    Converting SIF file", "b.json:1: not JSON: invalid character 'I' looking for beginning of value"},
		{good[:len(good)/2], "ends in the middle: cut short"},
		{good + good, "not JSON: invalid character '{' after top-level value"},
		{swap("probe.report/v1", "probe.diff/v1"), `b.json: its schema is "probe.diff/v1", and this probe reads "probe.report/v1"`},
		{`{"schema": "probe.report/v2", "what": "else"}`, `b.json: its schema is "probe.report/v2", and this probe reads "probe.report/v1"`},
		{swap("probe.report/v1", ""), `b.json: its schema is "", and this probe reads "probe.report/v1"`},
		{swap(`"label": "before"`, `"lable": "before"`), `b.json:8: run has an unknown field "lable"`},
		{swap(`"label": "before"`, `"\u001b]0;x": "before"`), `run has an unknown field "\x1b]0;x"`},
		{swap("2026-11-29T16:00:00Z", "yesterday"), `b.json: run.time "yesterday" is not a time`},
		{swap(`"outcome": "denied"`, `"outcome": "blocked"`), `check 1, net.mptcp[a]: outcome "blocked" is none of reachable denied`},
		{swap(`"outcome": "denied"`, `"outcome": ""`), `outcome "" is none of`},
		{swap(`"severity": "medium"`, `"severity": "dire"`), `severity "dire" is none of high medium low info`},
		{swap(`"target": "b"`, `"target": "a"`), `check 2, net.mptcp[a]: the same id and target as check 1`},
		{swap(`"id": "net.mptcp"`, `"id": "Net MPTCP\u001b"`), `check 1, Net MPTCP\x1b[a]: that is no check's id`},
		{swap(`"denied": 1`, `"denied": 2`), `summary says 2 denied, the checks hold 1`},
		{swap(`"denied": 1`, `"skipped": 0`), `summary has no denied, the checks hold 1`},
		{swap(`"denied": 1`, `"denied": 1, "blocked": 0`), `summary counts "blocked"`},
		{swap(`"uid": 1003`, `"uid": "root"`), `uid is a JSON string, must be a whole number`},
		{text(t, aReport("before")), "b.json: it holds no checks"},
	} {
		r, err := Decode("b.json", strings.NewReader(tc.in))
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "b.json:") {
			t.Errorf("Decode(%.60q): %v, want %s", tc.in, err, tc.want)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q is not one clean line", err)
		}
		if !reflect.DeepEqual(r, Report{}) {
			t.Errorf("Decode(%.60q) gives half a report beside its error", tc.in)
		}
	}
}

func TestDecode_NamesTheLine(t *testing.T) {
	in := text(t, aReport("before", saw("net.mptcp[a]", Denied), saw("net.mptcp[b]", "blocked")))
	_, err := Decode("b.json", strings.NewReader(in))
	line := 1 + strings.Count(in[:strings.LastIndex(in, `"id": "net.mptcp"`)], "\n") - 1
	if want := "b.json:" + strconv.Itoa(line) + ": check 2"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestDecode_TooLarge(t *testing.T) {
	_, err := Decode("b.json", strings.NewReader(strings.Repeat(" ", maxReport+1)))
	if err == nil || err.Error() != "b.json: larger than 16 MiB, so not a probe report" {
		t.Error(err)
	}
}

func TestDecode_ReadError(t *testing.T) {
	bad := errors.New("stale file handle")
	if _, err := Decode("b.json", iotest.ErrReader(bad)); !errors.Is(err, bad) {
		t.Error(err)
	}
}

// On an error the report is zero; otherwise what is printed is stable.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(text(f, aReport("before", saw("net.mptcp[a]", Denied), saw("ctl.user", Info)))))
	f.Add([]byte(`{"schema":"probe.report/v1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode("x", bytes.NewReader(data))
		if err != nil {
			if !reflect.DeepEqual(r, Report{}) {
				t.Fatal("half a report beside an error")
			}
			return
		}
		first := text(t, r)
		again, err := Decode("x", strings.NewReader(first))
		if err != nil {
			t.Fatalf("%v in\n%s", err, first)
		}
		if second := text(t, again); second != first {
			t.Fatalf("%s\nthen\n%s", first, second)
		}
	})
}
