package dockerfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fence/test/images"
)

// FuzzPlan: whatever the file and its .dockerignore say, there is a plan or an
// error of one line, the same one twice, and nothing but the context is opened:
// a link out of it leads to a FIFO, which nobody could open and go on.
func FuzzPlan(f *testing.F) {
	cases, err := images.Load("../../test/images/cases")
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add(c.Dockerfile, []byte("left\n"))
	}
	for _, s := range []string{
		"FROM full\nONBUILD COPY <<E /x\n$A\nE\nFROM full", "FROM scratch AS a\nCOPY --from=a / /\nRUN --mount=from=a,source=..,target=x,rw y",
		"FROM base\nCOPY --parents --exclude=[ */./**/a ../out ./../../* [ /x", "FROM base\nADD out fifo ../fifo out/../.. \\ /\nENV A=${B//a/${C%%d}}",
		"# escape=`\nFROM --platform=$TARGETPLATFORM base\nEXPOSE 0-65535/tcp\nHEALTHCHECK --interval=1h CMD x", "ARG A=$A$A\nARG A=$A$A\nFROM base$A",
		"# x\n# check=error=true\nFROM base AS p\n# check=skip=all\nONBUILD RUN x\n# check=\nRUN x\nFROM p", "FROM base\nCOPY --from=\xff /x \xff\nEXPOSE \xff $A",
	} {
		f.Add([]byte(s), []byte("**\n!a\n[\n"))
	}
	outside := f.TempDir()
	dir := filepath.Join(outside, "context")
	write(f, filepath.Join(dir, "src/a"), "a")
	write(f, filepath.Join(dir, "src/b/c"), "c")
	write(f, filepath.Join(dir, "left/out"), "x")
	if err := syscall.Mkfifo(filepath.Join(outside, "fifo"), 0o666); err != nil {
		f.Fatal(err)
	}
	for name, target := range map[string]string{"out": "../fifo", "up": "..", "etc": "/etc", "in": "src", "src/fifo": filepath.Join(outside, "fifo")} {
		if err := syscall.Symlink(target, filepath.Join(dir, name)); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, file, ignore []byte) {
		o := Options{File: filepath.Join(dir, "Dockerfile"), Context: dir, Contexts: map[string]string{"other": filepath.Join(dir, "src")},
			Args: map[string]string{"A": "$A", "HTTP_PROXY": "p"}, Platform: amd64, Base: testBase}
		write(t, o.File+".dockerignore", string(ignore))
		p, err := New(t.Context(), file, o)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || p != nil || strings.ContainsAny(err.Error(), "\n\x1b") || e.Line > 1+strings.Count(string(file), "\n") {
				t.Fatalf("plan %v, error %#v", p, err)
			}
			return
		}
		for _, in := range p.Inputs {
			if !filepath.IsLocal(in) {
				t.Errorf("input %q", in)
			}
		}
		for _, s := range p.Stages {
			for _, step := range s.Steps {
				checkStep(t, step)
			}
		}
		def, err := Definition(p)
		if err != nil || !strings.HasPrefix(def, "# ") {
			t.Errorf("definition: %v", err)
		}
		checkDefinition(t, def)
		again, err := New(t.Context(), file, o)
		if err != nil || asJSON(t, again) != asJSON(t, p) {
			t.Errorf("not the same plan twice: %v", err)
		}
	})
}

func asJSON(t *testing.T, p *Plan) string {
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkStep holds a step against the contract in plan.go.
func checkStep(t *testing.T, s Step) {
	t.Helper()
	fail := func(format string, a ...any) { t.Errorf("line %d: "+format, append([]any{s.Line}, a...)...) }
	if s.Line < 1 || s.Text == "" || strings.ContainsAny(s.Text, "\n\x1b") {
		fail("text %q", s.Text)
	}
	clean := func(what, p string) {
		if !filepath.IsAbs(p) || strings.Contains(p, "/../") || strings.Contains(p, "//") {
			fail("%s %q", what, p)
		}
	}
	switch {
	case s.Run != nil:
		clean("folder", s.Run.Cwd)
		if len(s.Run.Argv) == 0 || strings.ContainsRune(fmt.Sprint(s.Run), 0) {
			fail("command %q", s.Run.Argv)
		}
		for _, m := range s.Run.Mounts {
			if m.Type == "bind" || m.Type == "cache" || m.Type == "tmpfs" {
				clean("target", m.Target)
			}
			if m.Source != "" && !filepath.IsLocal(m.Source) {
				fail("source %q", m.Source)
			}
		}
	case s.Copy != nil:
		clean("destination", s.Copy.Dest)
		for _, src := range s.Copy.Sources {
			if !filepath.IsLocal(src) {
				fail("source %q", src)
			}
		}
		for _, m := range s.Copy.Matches {
			if !filepath.IsLocal(m.Path) {
				fail("match %q", m.Path)
			}
		}
	case s.Workdir != nil:
		clean("folder", s.Workdir.Path)
	default:
		fail("no step")
	}
}
