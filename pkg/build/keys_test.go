package build

import (
	"encoding/json"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/dockerfile"
	"fence/pkg/tree"
)

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

// plan is one of everything: stage 0 is copied from by stage 2, which begins
// with a folder; a RUN before and a RUN after the copies.
func plan() *dockerfile.Plan {
	zero := 0
	match := []tree.Match{{Source: "f", Path: "f", Name: "f", Entry: tree.Entry{Type: "file", Mode: 0o644, Size: 2, SHA256: "aa"}}}
	return &dockerfile.Plan{File: "Dockerfile", Stages: []dockerfile.Stage{
		{Index: 0, From: dockerfile.From{Base: &dockerfile.Base{Name: "a", Digest: "sha256:1"}}, Steps: []dockerfile.Step{
			{Line: 2, Text: "RUN x", Run: &dockerfile.Run{Argv: []string{"/bin/sh", "-c", "x"}, Env: []string{"A=1"}, Cwd: "/", Proxy: []string{"http_proxy=p"}}},
		}},
		{Index: 2, From: dockerfile.From{Base: &dockerfile.Base{Name: "b", Digest: "sha256:2"}}, Config: v1.Config{Cmd: []string{"c"}}, Steps: []dockerfile.Step{
			{Line: 5, Text: "RUN first", Run: &dockerfile.Run{Argv: []string{"first"}, Cwd: "/"}},
			{Line: 6, Text: "COPY f /", Copy: &dockerfile.Copy{From: dockerfile.From{Context: "/here/ctx"}, Sources: []string{"f"}, Matches: match, Dest: "/"}},
			{Line: 7, Text: "COPY --from=0", Copy: &dockerfile.Copy{From: dockerfile.From{Stage: &zero}, Sources: []string{"o"}, Dest: "/o"}},
			{Line: 8, Text: "RUN last", Run: &dockerfile.Run{Argv: []string{"last"}, Cwd: "/"}},
		}},
	}}
}

// What each change rebuilds: exactly the steps that depend on it.
func TestKeys(t *testing.T) {
	old := newKeys(plan(), amd64, nil)
	for _, c := range []struct {
		name    string
		change  func(*dockerfile.Plan)
		stage0  []bool // steps that change
		stage2  []bool
		theSame bool // also the image
	}{
		{"nothing", func(p *dockerfile.Plan) {}, []bool{false}, []bool{false, false, false, false}, true},
		{"where the Dockerfile lies and how it is laid out", func(p *dockerfile.Plan) {
			p.File = "other/Dockerfile"
			p.Stages[1].Steps[3].Line, p.Stages[1].Steps[3].Text = 99, "RUN   last"
		}, []bool{false}, []bool{false, false, false, false}, true},
		{"where the context lies", func(p *dockerfile.Plan) {
			p.Stages[1].Steps[1].Copy.From.Context = "/elsewhere"
			p.Stages[1].Steps[1].Copy.From.Ignore = []string{"x"}
		}, []bool{false}, []bool{false, false, false, false}, true},
		{"a proxy", func(p *dockerfile.Plan) { p.Stages[0].Steps[0].Run.Proxy = nil }, []bool{false}, []bool{false, false, false, false}, true},
		{"a byte of a file", func(p *dockerfile.Plan) { p.Stages[1].Steps[1].Copy.Matches[0].Entry.SHA256 = "ab" }, []bool{false}, []bool{false, true, true, true}, false},
		{"a mode", func(p *dockerfile.Plan) { p.Stages[1].Steps[1].Copy.Matches[0].Entry.Mode = 0o755 }, []bool{false}, []bool{false, true, true, true}, false},
		{"a variable of stage 0", func(p *dockerfile.Plan) { p.Stages[0].Steps[0].Run.Env = []string{"A=2"} }, []bool{true}, []bool{false, false, true, true}, false},
		{"the base of stage 0", func(p *dockerfile.Plan) { p.Stages[0].From.Base.Digest = "sha256:3" }, []bool{true}, []bool{false, false, true, true}, false},
		{"the base", func(p *dockerfile.Plan) { p.Stages[1].From.Base.Digest = "sha256:3" }, []bool{false}, []bool{true, true, true, true}, false},
		{"the base's name", func(p *dockerfile.Plan) { p.Stages[1].From.Base.Name = "c" }, []bool{false}, []bool{false, false, false, false}, true},
		{"the last step's user", func(p *dockerfile.Plan) { p.Stages[1].Steps[3].Run.User = "bob" }, []bool{false}, []bool{false, false, false, true}, false},
		{"when health is asked for", func(p *dockerfile.Plan) { p.Stages[1].StartInterval = 5 }, []bool{false}, []bool{false, false, false, false}, false},
		{"the configuration", func(p *dockerfile.Plan) { p.Stages[1].Config.Cmd = nil }, []bool{false}, []bool{false, false, false, false}, false},
	} {
		p := plan()
		c.change(p)
		now := newKeys(p, amd64, nil)
		for _, s := range []struct {
			stage int
			want  []bool
		}{{0, c.stage0}, {2, c.stage2}} {
			for i, changed := range s.want {
				if got := now.Steps[s.stage][i] != old.Steps[s.stage][i]; got != changed {
					t.Errorf("%s: step %d of stage %d: changed is %t, want %t", c.name, i, s.stage, got, changed)
				}
			}
		}
		if same := now.Image == old.Image; same != c.theSame {
			t.Errorf("%s: the same image is %t, want %t", c.name, same, c.theSame)
		}
	}
	if newKeys(plan(), v1.Platform{OS: "linux", Architecture: "arm64"}, nil).Image == old.Image {
		t.Error("the architecture does not count")
	}
	if newKeys(plan(), amd64, []string{"tmux"}).Image == old.Image {
		t.Error("what is required does not count")
	}
}

// Names that are not UTF-8 are told apart.
func TestKeys_NamesAreBytes(t *testing.T) {
	named := func(name string) string {
		p := plan()
		p.Stages[1].Steps[1].Copy.Matches[0].Path = name
		return newKeys(p, amd64, nil).Image
	}
	if named("\xff") == named("\xfe") {
		t.Error("two names have one key")
	}
}

func TestMatchOfBytesInJSON(t *testing.T) {
	m := tree.Match{Source: "\xff", Path: "ok\x00", Name: "\xfe\n", Entry: tree.Entry{Path: "é", Link: "\xc3"}, Below: []tree.Entry{{Path: "\x80"}}}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var back tree.Match
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.Source != m.Source || back.Name != m.Name || back.Entry != m.Entry || back.Below[0] != m.Below[0] {
		t.Errorf("%+v became %+v", m, back)
	}
}
