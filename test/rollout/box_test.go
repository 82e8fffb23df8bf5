package rollout

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/box"
	"fence/pkg/session"
	"fence/test/bed"
)

// options are those of a box of the image, in a scratch folder of its own.
func options(t *testing.T, image string) box.Options {
	t.Helper()
	return box.Options{
		Apptainer: filepath.Join(bed.Dir(), "bin", "apptainer"), Fence: real(t, bed.Bin(t, "fence")), Probe: real(t, bed.Bin(t, "probe")),
		Image: bed.Image(image), Scratch: scratch(t), Network: "loopback",
	}
}

func real(t *testing.T, p string) string {
	t.Helper()
	p, err := filepath.EvalSymlinks(p)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// scratch is a folder for one box, which is to be gone when the test is over.
func scratch(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(bed.TempDir(t), "box")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

type running struct {
	*box.Box
	t *testing.T
	o box.Options
}

// start starts a box that is closed when the test is over, with nothing left.
func start(t *testing.T, o box.Options) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := box.Start(ctx, o)
	if err != nil {
		t.Fatalf("%v: %+v", err, err)
	}
	r := &running{b, t, o}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, o.Scratch)
	})
	return r
}

// nothingLeft looks for processes, mounts and files of a box.
func nothingLeft(t *testing.T, scratch string) {
	t.Helper()
	if _, err := os.Lstat(scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), scratch) {
		t.Errorf("mounts are left (%v)", err)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range lines {
		if data, err := os.ReadFile(p); err == nil && strings.Contains(string(data), scratch) {
			t.Errorf("a process is left: %s %q", p, data)
		}
	}
}

type output struct {
	session.Exit
	out, err string
}

func (r *running) try(c box.Command, in string) (output, error) {
	var out, errs bytes.Buffer
	exit, err := r.Run(r.t.Context(), c, session.Streams{In: strings.NewReader(in), Out: &out, Err: &errs})
	return output{exit, out.String(), errs.String()}, err
}

// sh runs a script that must end with 0.
func (r *running) sh(domain, script string, args ...string) string {
	r.t.Helper()
	got, err := r.try(box.Command{Domain: domain, Argv: append([]string{"sh", "-c", script, "sh"}, args...)}, "")
	if err != nil || got.Code != 0 {
		r.t.Fatalf("%s: %s: %v %+v", domain, script, err, got)
	}
	return got.out
}

func archive(files map[string]string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))})
		_, _ = io.WriteString(w, text)
	}
	_ = w.Close()
	return &b
}

// A trial in short: files in, a solution, tests out of its reach, files out.
func TestBox(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "debian"))
	if err := r.Put(t.Context(), box.Agent, "/solution", archive(map[string]string{"solve.sh": "#!/bin/sh\necho done >/app.txt\nread x; echo got $x\n"})); err != nil {
		t.Fatal(err)
	}
	got, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"/solution/solve.sh"}}, "some\n")
	if err != nil || got.out != "got some\n" || got.Code != 0 {
		t.Fatalf("%v %+v", err, got)
	}
	if err := r.Put(t.Context(), box.Verifier, "/tests", archive(map[string]string{"test.sh": "secret"})); err != nil {
		t.Fatal(err)
	}
	r.sh(box.Verifier, `cat /app.txt >/logs/verifier/reward.txt`)
	const look = `ls -A /tests /logs/verifier`
	if got, want := r.sh(box.Agent, look), "/logs/verifier:\n\n/tests:\n"; got != want {
		t.Errorf("the agent sees %q, want %q", got, want)
	}
	if got, want := r.sh(box.Verifier, look), "/logs/verifier:\nreward.txt\n\n/tests:\ntest.sh\n"; got != want {
		t.Errorf("the control: the verifier sees %q, want %q", got, want)
	}
	var stream bytes.Buffer
	if err := r.Get(t.Context(), box.Verifier, "/logs", []string{"verifier"}, &stream); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(&stream); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(tr)
		files[h.Name] = string(data)
	}
	if files["verifier/reward.txt"] != "done\n" {
		t.Errorf("%v", files)
	}
	is := r.Isolation()
	if !is.Below || is.Agent.Network != "loopback" || is.Verifier.Network != "loopback" || is.Agent.Form != "namespace" || len(is.Opened) != 0 {
		t.Errorf("%+v", is)
	}
	if data, err := os.ReadFile(filepath.Join(r.Upper(), "app.txt")); err != nil || string(data) != "done\n" {
		t.Errorf("%v %q", err, data)
	}
	if err := r.Close(); err != nil || r.Err() != nil {
		t.Errorf("%v %v", err, r.Err())
	}
	fmt.Printf("usage %+v\n", r.Usage())
}
