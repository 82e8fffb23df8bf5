package guide

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/pkg/probe"
	"fence/test/bed"
)

// A place is a folder of the person's on shared storage, as they would set it
// up: the programs in bin/, an image called img.sif.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) place {
	t.Helper()
	return placeIn(t, bed.SharedDir)
}

func placeIn(t *testing.T, dir func(testing.TB) string) place {
	t.Helper()
	bed.Require(t, "images", "site")
	p := place{t, dir(t)}
	if err := os.Mkdir(p.path("bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fence", "probe"} {
		data, err := os.ReadFile(bed.Bin(t, name))
		if err != nil {
			t.Fatal(err)
		}
		p.write("bin/"+name, string(data), 0o755)
	}
	p.image("debian")
	return p
}

// tasks puts sifbuild and rollout into bin/, and two tasks into tasks/: hello,
// and leaky, whose image has a file of its tests, and which nobody can grade.
func (p place) tasks() place {
	p.t.Helper()
	for _, name := range []string{"sifbuild", "rollout"} {
		data, err := os.ReadFile(bed.Bin(p.t, name))
		if err != nil {
			p.t.Fatal(err)
		}
		p.write("bin/"+name, string(data), 0o755)
	}
	const check = "test \"$(cat /app/answer)\" = 42 # what an agent must not read, and long enough to count\n"
	for name, text := range map[string]string{
		"hello/task.toml": "version = \"1.0\"\n", "hello/instruction.md": "Say hello.\n", "hello/tests/check.sh": check,
		"hello/tests/test.sh":          "#!/bin/sh\nif sh /tests/check.sh; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n",
		"hello/solution/solve.sh":      "#!/bin/sh\ncp question answer\n",
		"hello/environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nRUN python3 -c 'print(6 * 7)' >question\nCMD [\"bash\"]\n",
		"leaky/task.toml":              "version = \"1.0\"\n", "leaky/instruction.md": "Find it.\n", "leaky/tests/check.sh": check,
		"leaky/environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nRUN python3 -c 'print(6 * 7)' >question\nCOPY . .\n",
		"leaky/environment/check.sh":   check,
	} {
		full := p.path("tasks/" + name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			p.t.Fatal(err)
		}
		p.write("tasks/"+name, text, 0o644)
	}
	return p
}

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

// write makes a file of the person's own.
func (p place) write(name, text string, mode os.FileMode) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
	p.own(name)
}

func (p place) own(name string) {
	p.t.Helper()
	uid, gid, _ := bed.User(p.t)
	if err := os.Lchown(p.path(name), uid, gid); err != nil {
		p.t.Fatal(err)
	}
}

func (p place) read(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

// image makes img.sif another of the bed's images.
func (p place) image(name string) {
	p.t.Helper()
	if name == "workloads" { // not of the bed's default parts
		bed.Require(p.t, name)
	}
	os.Remove(p.path("img.sif"))
	if err := os.Symlink(bed.Image(name), p.path("img.sif")); err != nil {
		p.t.Fatal(err)
	}
	p.own("img.sif")
}

// here makes cmd, which bed made, one that the person types in the place.
func (p place) here(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir = p.dir
	for i, kv := range cmd.Env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Env[i] = "PATH=" + p.path("bin") + ":" + path
		}
	}
	return cmd
}

// result is what a command left behind.
type result struct {
	stdout, stderr string
	code           int
}

func (p place) run(cmd *exec.Cmd) result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("%v: %v", cmd, err)
	}
	return result{stdout.String(), quiet(stderr.String()), cmd.ProcessState.ExitCode()}
}

// quiet takes out what Apptainer says of a program that the bed has not, and
// of a working folder that is not mounted.
func quiet(stderr string) string {
	var out strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "INFO:    gocryptfs not found") && !strings.HasPrefix(line, "WARNING: Error changing the container working directory") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// full says whether to try every combination, as make test-all does.
func full() bool { return os.Getenv("TEST_FULL") != "" }

// sh runs a script of the person's.
func (p place) sh(script string, env ...string) result {
	p.t.Helper()
	cmd := p.here(bed.Command(p.t, "bash", "-c", script))
	cmd.Env = append(cmd.Env, env...)
	return p.run(cmd)
}

// on runs a script on a node with other /proc/sys/user settings.
func (p place) on(limits []string, script string) result {
	p.t.Helper()
	if len(limits) == 0 {
		return p.sh(script)
	}
	return p.run(p.here(bed.Limited(p.t, limits, "bash", "-c", script)))
}

// ok fails the test unless the command ended with 0.
func (p place) ok(r result) result {
	p.t.Helper()
	return p.ends(r, 0)
}

func (p place) ends(r result, codes ...int) result {
	p.t.Helper()
	if !slices.Contains(codes, r.code) {
		p.t.Fatalf("exit code %d, want %v\nstdout:\n%s\nstderr:\n%s", r.code, codes, r.stdout, r.stderr)
	}
	return r
}

// report decodes a report, every unknown field refused.
func (p place) report(name string) probe.Report {
	p.t.Helper()
	f, err := os.Open(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	r, err := probe.Decode(name, f)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// late says whether a check of the report got no answer in time: on a busy
// machine that happens, and is no finding.
func late(r probe.Report) bool { return r.Summary[probe.Timeout] > 0 }

// listener starts `probe listen` and returns when c.json is there.
func (p place) listener() {
	p.t.Helper()
	cmd := p.here(bed.Command(p.t, p.path("bin/probe"), "listen", "--canary", "c.json"))
	pipe, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { cmd.Wait() }) // the test's context ends it
	line := make([]byte, 4096)
	n, _ := pipe.Read(line) // its first words, or its end
	if _, err := os.Stat(p.path("c.json")); err != nil {
		p.t.Fatalf("probe listen said %q and wrote no c.json", line[:n])
	}
}

// decoded is a record of one of the tools, with unknown fields refused.
func decoded[T any](t *testing.T, data string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return v
}
