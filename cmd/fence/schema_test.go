package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"testing"

	"fence/pkg/policy"
	"fence/pkg/sandbox"
	"fence/pkg/status"
	"fence/policies"
	"fence/test/clitest"
)

// explanation is Explanation as a reader of the record has it: the kinds of
// mounts are words there.
type explanation struct {
	Schema string             `json:"schema"`
	Status status.Status      `json:"status"`
	Paths  []sandbox.PathRule `json:"paths"`
	Mounts []struct {
		Kind     string   `json:"kind"`
		Path     string   `json:"path"`
		From     string   `json:"from,omitempty"`
		ReadOnly bool     `json:"read_only,omitempty"`
		Holds    int      `json:"holds,omitempty"`
		Devices  []string `json:"devices,omitempty"`
		Dir      bool     `json:"dir,omitempty"`
		Absent   bool     `json:"absent,omitempty"`
	} `json:"mounts"`
	Env    []string     `json:"env"`
	Limits []string     `json:"limits"`
	Legs   []status.Leg `json:"trifecta"`
}

// fence runs this test's own fence, in a clean environment that holds a
// credential, and returns its stdout. Exit codes other than those are a
// failure.
func fence(t *testing.T, codes []int, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("fence", args...) // testscript.Main puts it in PATH
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HF_TOKEN=0123456789", "HOME=/nonexistent"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if !slices.Contains(codes, cmd.ProcessState.ExitCode()) {
		t.Fatalf("fence %q: %v\n%s", args, err, stderr.String())
	}
	return out
}

// Real records fit their schema, are read back with every unknown field
// refused, and come out as they went in.
func TestRecords_Real(t *testing.T) {
	namespaces, err := condition("namespace")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	type record struct {
		name string
		data []byte
		into any
	}
	records := []record{{"fence.check", fence(t, []int{0, 1}, "check", "--json"), &Check{}}}
	if namespaces {
		opened := []string{"--read", "/usr/share", "--why", "a test", "--limit", "nproc=unlimited", "--hide", "/etc/passwd", "--hide", tmp, "--hide", "/no/such"}
		line, words, ok := bytes.Cut(fence(t, []int{0}, slices.Concat(opened, []string{"--status-fd", "1", "--", "echo", "ran"})...), []byte("\n"))
		if !ok || string(words) != "ran\n" {
			t.Errorf("after the status line came %q", words)
		}
		records = append(records,
			record{"fence.status", line, &status.Status{}},
			record{"fence.explain", fence(t, []int{0}, slices.Concat([]string{"explain", "--json"}, opened)...), &explanation{}},
			record{"fence.explain", fence(t, []int{0}, "explain", "--json", "--policy", "build"), &explanation{}})
	}
	// Lists are lists in the bare form too. On a bare node it must be accepted.
	bare := []string{"explain", "--json", "--form", "bare", "--why", "a test"}
	for _, name := range []string{sandbox.AcceptLandlockHide, sandbox.AcceptHostTmp, sandbox.AcceptSockets} {
		bare = append(bare, "--accept", name)
	}
	if out := fence(t, []int{0, 125}, bare...); len(out) > 0 {
		records = append(records, record{"fence.explain", out, &explanation{}})
	} else if namespaces {
		t.Error("the bare form is refused where namespaces work")
	}
	for _, r := range records {
		if err := clitest.Validate(t, r.name, r.data); err != nil {
			t.Errorf("%s: %v\n%s", r.name, err, r.data)
		}
		if err := decode(r.data, r.into); err != nil {
			t.Errorf("%s: %v\n%s", r.name, err, r.data)
			continue
		}
		var want bytes.Buffer
		if err := json.Compact(&want, r.data); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(r.into); err != nil || string(got) != want.String() {
			t.Errorf("%s, read and written again (%v):\n%s\nwas\n%s", r.name, err, got, want.String())
		}
		unknown := bytes.Replace(r.data, []byte(`{`), []byte(`{"surprise": 1, `), 1)
		if decode(unknown, reflect.New(reflect.TypeOf(r.into).Elem()).Interface()) == nil {
			t.Errorf("%s: an unknown field is taken", r.name)
		}
		if clitest.Validate(t, r.name, unknown) == nil {
			t.Errorf("%s: the schema takes an unknown field", r.name)
		}
		if bytes.Contains(r.data, []byte("0123456789\"")) {
			t.Errorf("%s holds the value of a credential", r.name)
		}
	}
	for _, r := range records {
		switch s := r.into.(type) {
		case *status.Status:
			if !slices.Equal(s.DroppedEnv, []string{"HF_TOKEN"}) {
				t.Errorf("dropped: %q", s.DroppedEnv)
			}
			if want := (policy.Loosening{What: "read /usr/share", Why: "a test", From: "--read"}); !slices.Contains(s.Opened, want) {
				t.Errorf("opened: %+v", s.Opened)
			}
			// What was there before the fence hid it is not absent.
			for _, want := range []sandbox.Hidden{{Path: tmp, How: "masked", Dir: true}, {Path: "/no/such", How: "absent"}} {
				if got := slices.DeleteFunc(slices.Clone(s.Hidden), func(h sandbox.Hidden) bool { return h.Path != want.Path }); !slices.Equal(got, []sandbox.Hidden{want}) {
					t.Errorf("hidden: %+v, want %+v", got, want)
				}
			}
		case *Check:
			if len(s.Policies) != len(policies.Names()) || s.Policies[0].Policy != "strict" {
				t.Errorf("policies: %+v", s.Policies)
			}
		}
	}
}

func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func TestSchemas_NameEveryField(t *testing.T) {
	for name, v := range map[string]any{"fence.status": status.Status{}, "fence.check": Check{}, "fence.explain": Explanation{}} {
		clitest.NamesEveryField(t, name, reflect.TypeOf(v))
	}
}

// A value is what was typed, blanks and all.
func TestFlags_KeepBlanks(t *testing.T) {
	dir := t.TempDir() + "/in "
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out := fence(t, []int{0}, "explain", "--json", "--read", dir, "--why", "a test", "--accept", "landlock-hide", "--accept", "host-tmp", "--accept", "sockets")
	if !bytes.Contains(out, []byte("read "+dir+`"`)) {
		t.Errorf("%q is not opened:\n%s", dir, out)
	}
}
