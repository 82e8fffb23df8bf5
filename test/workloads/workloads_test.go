package workloads

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"fence/test/bed"
)

// only restricts a run while one works on the table: go test ./test/workloads -args -only git,cargo
var only = flag.String("only", "", "comma-separated workloads to run, whatever they cost")

// chosen are the workloads of this run: without TEST_FULL those that take less than a second.
func chosen(t *testing.T) []Workload {
	t.Helper()
	names := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	for _, name := range names {
		if _, ok := Find(name); !ok {
			t.Fatalf("-only %s: there is no such workload", name)
		}
	}
	full := os.Getenv("TEST_FULL") != ""
	return slices.DeleteFunc(slices.Clone(Table), func(w Workload) bool {
		if len(names) > 0 {
			return !slices.Contains(names, w.Name)
		}
		return w.Slow && !full
	})
}

func TestWorkloads(t *testing.T) {
	bed.Require(t, "workloads", "users")
	fence := bed.Bin(t, "fence")
	inside := buildInside(t)
	list := chosen(t)

	// results[who][arm][name]
	results := map[Who]map[string]map[string]Result{}
	arms := func(who Who, w Workload, arm string) bool {
		switch arm {
		case Opened:
			return w.RunsAs(who) && w.Open != nil
		case Bare:
			return w.RunsAs(who) && !w.Slow
		case Whole, LessArm: // as one of the two is enough
			return !(arm == Whole && w.Slow) && w.Less != "" && (w.As == who || w.As == "" && who == User)
		}
		return w.RunsAs(who)
	}
	for _, who := range []Who{User, Root} {
		results[who] = map[string]map[string]Result{}
		for _, arm := range Arms {
			var names []string
			for _, w := range list {
				if arms(who, w, arm) {
					names = append(names, w.Name)
				}
			}
			results[who][arm] = container(t, fence, inside, who, arm, names)
		}
	}

	for _, w := range list {
		t.Run(w.Name, func(t *testing.T) {
			for _, who := range []Who{User, Root} {
				for _, arm := range Arms {
					if !arms(who, w, arm) {
						continue
					}
					r, ok := results[who][arm][w.Name]
					if !ok {
						t.Errorf("as %s, %s: no result", who, arm)
						continue
					}
					if bad := judge(w, r); bad != "" {
						t.Errorf("as %s, %s: %s\n%s", who, armText(w, arm), bad, r)
					}
				}
			}
		})
	}
}

// judge says what is wrong with a result, "" if nothing is.
func judge(w Workload, r Result) string {
	if r.Broken != "" {
		return "the test itself: " + r.Broken
	}
	works := string(r.Stdout) == w.Want && string(r.Stderr) == w.Stderr && r.Status == w.Status
	said := slices.Concat(r.Stdout, r.Stderr)
	denied := w.Denied
	if r.Arm == Bare && denied == "" {
		denied = w.DeniedBare
	}
	refused := (r.Arm == Strict || r.Arm == Bare) && denied != ""
	switch {
	case works && (refused || r.Arm == LessArm):
		return "it works all the same"
	case r.Arm == LessArm && !regexp.MustCompile(w.Breaks).Match(said):
		return "it does not break as known: " + w.Breaks
	case refused && r.Status == 0:
		return "it is refused, and its status is 0"
	case refused && !bytes.Contains(said, []byte(denied)):
		return "it does not say " + denied
	case !works && !refused && r.Arm != LessArm:
		return fmt.Sprintf("want status %d, stdout\n%s\nstderr\n%s", w.Status, indent(w.Want), indent(w.Stderr))
	}
	return ""
}

func armText(w Workload, arm string) string {
	switch arm {
	case Without:
		return "without the fence"
	case Bare:
		return "under strict in the bare form"
	case Opened:
		return "under fence " + strings.Join(w.Open, " ")
	case Whole:
		return "less nothing"
	case LessArm:
		return "less the right: " + w.Less
	}
	return "under strict"
}

func (r Result) String() string {
	return fmt.Sprintf("status %d, stdout\n%s\nstderr\n%s", r.Status, indent(string(r.Stdout)), indent(string(r.Stderr)))
}

func indent(s string) string {
	if s == "" {
		return "\t(nothing)"
	}
	return "\t" + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n\t")
}

// container runs the named workloads one way, in a container that is started as fence env says:
// nothing of the site's, a writable overlay, a private /tmp, in which lies the program that does it.
func container(t *testing.T, fence, inside string, who Who, arm string, names []string) map[string]Result {
	t.Helper()
	if len(names) == 0 {
		return nil
	}
	cmd := apptainer(t, fence, inside, who, append([]string{"/tmp/inside", "run", arm}, names...))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("as %s, %s: apptainer: %v\n%s", who, arm, err, stderr.String())
	}
	results := map[string]Result{}
	var cpu float64
	for d := json.NewDecoder(&stdout); ; {
		var r Result
		if err := d.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("as %s, %s: %v\n%s", who, arm, err, stdout.String())
		}
		results[r.Name] = r
		cpu += r.CPU
	}
	t.Logf("as %s, %s: %d workloads, %.0f s of processor", who, arm, len(results), cpu)
	return results
}

// apptainer is argv in a fresh container.
func apptainer(t *testing.T, fence, inside string, who Who, argv []string) *exec.Cmd {
	t.Helper()
	dir := bed.TempDir(t)
	uid, gid, _ := bed.User(t)
	for _, sub := range []string{"overlay", "overlay/upper", "overlay/work", "tmp", "tmp/tmp"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, sub), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp/tmp"), fs.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(inside, filepath.Join(dir, "tmp/tmp/inside")); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", "exec", "--overlay", filepath.Join(dir, "overlay")}
	if who == Root {
		args = append(args, "--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command")
	}
	cmd := bed.Apptainer(t, append(append(args, bed.Image("workloads")), argv...)...)
	env, err := bed.Command(t, fence, "env", "--tmp", filepath.Join(dir, "tmp")).Output()
	if err != nil {
		t.Fatalf("fence env: %v", err)
	}
	for line := range strings.Lines(string(env)) {
		kv := strings.TrimPrefix(strings.TrimSpace(line), "export ")
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			t.Fatalf("fence env: %q", line)
		}
		cmd.Env = append(cmd.Env, name+"="+strings.Trim(value, "'"))
	}
	return cmd
}

// buildInside builds the program that runs in the container, static as fence is.
func buildInside(t *testing.T) string {
	t.Helper()
	dir := bed.TempDir(t)
	out := filepath.Join(dir, "inside")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "osusergo,netgo",
		"-ldflags", `-s -w -linkmode external -extldflags "-static"`, "-o", out, "./inside")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building inside: %v\n%s", err, text)
	}
	return out
}

// The way a person runs one command, without the program in between.
func TestOneCommand(t *testing.T) {
	bed.Require(t, "workloads", "users")
	w, _ := Find("output")
	for _, who := range []Who{User, Root} {
		cmd := apptainer(t, bed.Bin(t, "fence"), os.Args[0], who, []string{launcher, "--", "bash", "-c", w.Run})
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		cmd.Run()
		r := Result{Arm: Strict, Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Status: cmd.ProcessState.ExitCode()}
		if bad := judge(w, r); bad != "" {
			t.Errorf("as %s: %s\n%s", who, bad, r)
		}
	}
}

func TestImageIsNotTooLarge(t *testing.T) {
	bed.Require(t, "workloads")
	info, err := os.Stat(bed.Image("workloads"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 1500<<20 {
		t.Errorf("%d MiB", info.Size()>>20)
	}
}

func TestTable(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Log("what programs print was noted on amd64")
	}
	names := map[string]bool{}
	real := map[string]bool{}
	for _, w := range Table {
		switch {
		case !regexp.MustCompile(`^[a-z-]+$`).MatchString(w.Name) || names[w.Name]:
			t.Errorf("%q is not a name, or one twice", w.Name)
		case w.About == "" || w.Run == "":
			t.Errorf("%s: nothing said about it, or nothing run", w.Name)
		case count(w.Less, w.Denied, w.Idle) != 1:
			t.Errorf("%s: it needs a right, or it is refused, or nothing breaks it", w.Name)
		case (w.Less == "") != (w.Breaks == ""):
			t.Errorf("%s: how does it break?", w.Name)
		case w.Open != nil && w.Denied == "":
			t.Errorf("%s: opened, and not refused", w.Name)
		}
		if re, err := regexp.Compile(w.Breaks); err != nil {
			t.Errorf("%s: %v", w.Name, err)
		} else if w.Breaks != "" && re.MatchString(w.Want+w.Stderr) {
			t.Errorf("%s: it says %q when it works, too", w.Name, w.Breaks)
		}
		if w.Denied != "" && strings.Contains(w.Want+w.Stderr, w.Denied) {
			t.Errorf("%s: it says %q when it works, too", w.Name, w.Denied)
		}
		names[w.Name] = true
		if w.Less != "" {
			real[w.Name] = true
		}
	}
	if len(real) < 12 {
		t.Errorf("only %d workloads with a right of their own", len(real))
	}
}

// count is how many of these say something.
func count(texts ...string) int {
	return len(slices.DeleteFunc(texts, func(s string) bool { return s == "" }))
}

// What judge must not let pass.
func TestJudge(t *testing.T) {
	w := Workload{Want: "out\n", Stderr: "err\n", Status: 3, Less: Refer, Breaks: "cross-device"}
	denied := Workload{Want: "out\n", Denied: "not permitted"}
	good := Result{Arm: Strict, Stdout: []byte("out\n"), Stderr: []byte("err\n"), Status: 3}
	with := func(r Result, change func(*Result)) Result { change(&r); return r }
	for _, c := range []struct {
		name string
		w    Workload
		r    Result
		bad  bool
	}{
		{"works", w, good, false},
		{"another status", w, with(good, func(r *Result) { r.Status = 0 }), true},
		{"more on stderr", w, with(good, func(r *Result) { r.Stderr = []byte("err\nfence: hello\n") }), true},
		{"less on stdout", w, with(good, func(r *Result) { r.Stdout = nil }), true},
		{"no answer", w, with(good, func(r *Result) { r.Broken = "timeout" }), true},
		{"less a right, works", w, with(good, func(r *Result) { r.Arm = LessArm }), true},
		{"less a right, breaks", w, Result{Arm: LessArm, Stderr: []byte("mv: cross-device link"), Status: 1}, false},
		{"less a right, breaks otherwise", w, Result{Arm: LessArm, Stderr: []byte("mv: no such file"), Status: 1}, true},
		{"denied", denied, Result{Arm: Strict, Stderr: []byte("x: not permitted"), Status: 1}, false},
		{"denied, status 0", denied, Result{Arm: Strict, Stderr: []byte("x: not permitted")}, true},
		{"not denied", denied, Result{Arm: Strict, Stdout: []byte("out\n")}, true},
		{"denied without the fence", denied, Result{Arm: Without, Stderr: []byte("x: not permitted"), Status: 1}, true},
		{"works when opened", denied, Result{Arm: Opened, Stdout: []byte("out\n")}, false},
		{"denied when opened", denied, Result{Arm: Opened, Stderr: []byte("x: not permitted"), Status: 1}, true},
	} {
		if got := judge(c.w, c.r); (got != "") != c.bad {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
