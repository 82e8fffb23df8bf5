package session

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fence/pkg/session"
	"fence/test/bed"
)

// Files go in and come out as tar makes and takes them.
func TestPutGet(t *testing.T) {
	forms(t, func(p *place) {
		dir := t.TempDir()
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
		if err := os.MkdirAll(filepath.Join(dir, "tests/sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		os.WriteFile(filepath.Join(dir, "tests/test.sh"), []byte("#!/bin/sh\necho tested\n"), 0o755)
		os.WriteFile(filepath.Join(dir, "tests/sub/big"), big, 0o600)
		os.Symlink("../../etc/passwd", filepath.Join(dir, "tests/sub/link"))
		os.Link(filepath.Join(dir, "tests/sub/big"), filepath.Join(dir, "tests/sub/same"))
		stream, err := exec.Command("tar", "-c", "-C", dir, "tests").Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Put(p.t.Context(), session.Command{Domain: "verifier"}, "/tmp/new/place", bytes.NewReader(stream)); err != nil {
			p.t.Fatal(err)
		}
		if got := p.sh("verifier", `cd /tmp/new/place/tests; ./test.sh; stat -c '%a %h %s' sub/big; readlink sub/link; id -u; stat -c %u test.sh`); !strings.HasPrefix(got, "tested\n600 2 16777216\n../../etc/passwd\n") {
			p.t.Errorf("it has\n%s", got)
		}
		var out bytes.Buffer
		if err := p.Get(p.t.Context(), session.Command{Domain: "verifier"}, "/tmp/new/place", []string{"tests"}, &out); err != nil {
			p.t.Fatal(err)
		}
		back := t.TempDir()
		untar := exec.Command("tar", "-x", "-C", back)
		untar.Stdin = &out
		if text, err := untar.CombinedOutput(); err != nil {
			p.t.Fatalf("%v %s", err, text)
		}
		if text, err := exec.Command("diff", "-r", "--no-dereference", dir, back).CombinedOutput(); err != nil {
			p.t.Errorf("%v\n%s", err, text)
		}
		// The rights are the domain's.
		err = p.Put(p.t.Context(), session.Command{Domain: "agent"}, "/usr/new", bytes.NewReader(stream))
		if code(err) != 3 || !strings.Contains(err.Error(), "/usr/new: ") {
			p.t.Errorf("into /usr: %v", err)
		}
		if err := p.Put(p.t.Context(), session.Command{Domain: "agent"}, "/bin", bytes.NewReader(stream)); code(err) != 3 || !strings.Contains(err.Error(), "there is a link in this path") {
			p.t.Errorf("into a link: %v", err)
		}
		// A stream cut short is no success.
		if err := p.Put(p.t.Context(), session.Command{Domain: "agent"}, "/tmp/cut", bytes.NewReader(stream[:1<<20])); code(err) != 2 {
			p.t.Errorf("cut short: %v", err)
		}
		if err := p.Get(p.t.Context(), session.Command{Domain: "agent"}, "/tmp", []string{"absent"}, &out); code(err) != 3 || !strings.Contains(err.Error(), "absent: no such file") {
			p.t.Errorf("what is not there: %v", err)
		}
		// A reader who waits for a pipe that nobody writes: it is left out.
		p.sh("agent", `mkdir /tmp/odd; mkfifo /tmp/odd/pipe; echo x >/tmp/odd/file; ln -s / /tmp/odd/root`)
		out.Reset()
		if err := p.Get(p.t.Context(), session.Command{Domain: "agent"}, "/tmp", []string{"odd"}, &out); err != nil {
			p.t.Fatal(err)
		}
		list := exec.Command("tar", "-t")
		list.Stdin = &out
		if names, err := list.Output(); err != nil || string(names) != "odd/\nodd/file\nodd/root\n" {
			p.t.Errorf("%v %q", err, names)
		}
	})
}

// As a person types it.
func TestPutGet_Commands(t *testing.T) {
	socket, _ := hosted(t, "agent=strict")
	dir := bed.TempDir(t)
	sh := func(script string, want int, says string) {
		t.Helper()
		cmd := bed.Command(t, "bash", "-c", "set -o pipefail\n"+script)
		withFence(t, cmd)
		cmd.Env = append(cmd.Env, "S="+socket)
		cmd.Dir = dir
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != want || !strings.Contains(string(out), says) {
			t.Errorf("%s: %v, want %d and %q\n%s", script, cmd.ProcessState, want, says, out)
		}
	}
	sh(`mkdir t; echo one >t/f; tar c t | fence put --socket $S --dir /tmp/in && fence get --socket $S --dir /tmp/in t | tar t`, 0, "t/\nt/f\n")
	// What git archive and GNU tar put beside the files.
	for _, flags := range []string{"--format=pax --pax-option=comment=x", "-V label", "-S", "-g list"} {
		sh(`truncate -s 2M t/holes; tar c `+flags+` t | fence put --socket $S --dir /tmp/odd && fence run --socket $S -- sh -c 'cat /tmp/odd/t/f; stat -c %s /tmp/odd/t/holes; rm -r /tmp/odd'`, 0, "one\n2097152\n")
	}
	sh(`fence put --socket $S --dir /tmp <t/f`, 2, "fence: this is no tar stream")
	sh(`fence put --socket $S --dir /tmp </dev/null`, 2, "fence: this is no tar stream")
	sh(`tar cP /etc/passwd | fence put --socket $S --dir /tmp`, 2, `fence: "/etc/passwd" leads out of the folder`)
	sh(`tar c --transform 's,^,../,' -P t | fence put --socket $S --dir /tmp/x`, 2, "leads out of the folder")
	sh(`fence get --socket $S --dir /tmp ../etc/passwd >x.tar`, 2, `fence: "../etc/passwd" leads out of the folder`)
	sh(`fence get --socket $S --dir /no x >x.tar`, 3, "fence: /no: no such file or directory")
	sh(`fence put --socket $S --dir tmp <x.tar`, 2, `--dir: "tmp" is not an absolute path`)
	sh(`fence run --socket $S -- mkfifo "$(printf '/tmp/in/\033]0;title\007')" && fence get --socket $S --dir /tmp in >x.tar`, 0, `in/\x1b]0;title\a is left out`)
	// A tree that is too deep is left out, and keeps nothing else from coming.
	sh(`fence run --socket $S -- python3 -c '
import os
os.makedirs("/tmp/deep/a"); open("/tmp/deep/z", "w").close(); os.chdir("/tmp/deep/a")
for i in range(5000): os.mkdir("d"); os.chdir("d")' && fence get --socket $S --dir /tmp deep 2>said | tar t | grep -c . && test $(wc -c <said) -lt 400 && cat said`, 0, "401\nfence: deep/a/d/d/")
	sh(`fence put --socket $S x <x.tar`, 2, `fence put takes flags only: "x"`)
}
