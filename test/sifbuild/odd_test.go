package sifbuild

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fence/test/bed"
)

// A node that allows fewer namespaces than a build needs is named in one line,
// and nothing is left although no namespace can be had for removing it.
func TestNamespacesUsedUp(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN true\n")
	for limit, want := range map[string]string{
		"max_user_namespaces=0": "no more namespaces are allowed here",
		"max_user_namespaces=1": "namespace", // sifbuild says so, or fence: one that has ended may still count
		"max_mnt_namespaces=2":  "this node refuses it (no space left on device)",
	} {
		cmd := p.command(nil)
		r := p.run(bed.Limited(t, []string{limit}, cmd.Path, cmd.Args[1:]...))
		if r.code != 2 && (r.code != 3 || limit != "max_user_namespaces=1") || !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, `\n`) {
			t.Errorf("%s: exit code %d\n%s", limit, r.code, r.stderr)
		}
		p.clean()
	}
}

// What a RUN line needs of the node is tried before anything is built: here
// /proc is masked, as in a container, so that none can be mounted.
func TestNodeWithoutProc(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN true\n")
	p.task("copy", "FROM busybox\nCOPY Dockerfile /\n")
	masked := func(tasks []string) result {
		cmd := p.command(tasks, "--no-smoke")
		uid, gid, _ := bed.User(t)
		script := fmt.Sprintf(`mount --bind /dev/null /proc/version && exec setpriv --reuid %d --regid %d --clear-groups -- "$@"`, uid, gid)
		sh := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", cmd.Path}, cmd.Args[1:]...)...)
		sh.Env = cmd.Env
		return p.run(sh)
	}
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: only root can mask a file of /proc")
	}
	r := masked(nil)
	if r.code != 2 || len(r.records) != 0 || !strings.Contains(r.stderr, "nothing can be built here: mounting proc at /proc: operation not permitted") {
		t.Errorf("exit code %d, %v\n%s", r.code, r.records, r.stderr)
	}
	p.clean()
	p.built(masked([]string{"copy"})) // which needs none
}

// What ADD fetches has the name at the end of its URL, also one that looks like
// a pattern or that two have, and its checksum is compared, of whatever kind.
func TestAddURL(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServer(t)
	sum := sha512.Sum512([]byte("/right\n"))
	checksum := "sha512:" + hex.EncodeToString(sum[:])
	p.task("names", fmt.Sprintf("FROM busybox\nADD %[1]s/%%2a %[1]s/%%5bx %[1]s/one/same %[1]s/two/same /d/\nADD --checksum=%[2]s %[1]s/right /right\n", s.URL, checksum))
	p.task("wrong", fmt.Sprintf("FROM busybox\nADD --checksum=%s %s/wrong /wrong\n", checksum, s.URL))
	p.task("away", "FROM busybox\nADD http://127.0.0.1:1/x /\n")
	r := p.run(p.command(nil, "--retries", "0"))
	if one := r.records["names"]; one.Fault != nil {
		t.Error(one.Fault.Message)
	} else {
		for name, want := range map[string]string{"/d/*": "/*\n", "/d/[x": "/[x\n", "/d/same": "/two/same\n", "/right": "/right\n"} {
			if got := p.file(one.Image, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
	for name, class := range map[string]string{"wrong": "source", "away": "network"} {
		if one := r.records[name]; one.Fault == nil || one.Fault.Class != class {
			t.Errorf("%s: %+v", name, one.Fault)
		}
	}
}

// What a caller ignores stays ignored, as nohup(1) wants it, but not by what a
// RUN line starts.
func TestNohup(t *testing.T) { engines(t, testNohup) }

func testNohup(t *testing.T, p *place) {
	s := newServer(t)
	p.task("a", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/here; grep SigIgn /proc/self/status > /ignored\n")
	p.program("a", "inside")
	cmd := p.command(nil)
	argv := append([]string{"-c", `trap "" HUP INT QUIT PIPE; exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	sh := bed.Command(t, "sh", argv...)
	sh.Env = cmd.Env
	s.on(func(string) {
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
			sh.Process.Signal(sig)
		}
	})
	r := p.built(p.run(sh))["a"]
	var ignored uint64
	if _, err := fmt.Sscanf(p.file(r.Image, "/ignored"), "SigIgn: %x", &ignored); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE} { // its shell ignores SIGQUIT itself
		if ignored&(1<<(sig-1)) != 0 {
			t.Errorf("a RUN line ignores %v", sig)
		}
	}
}

// A run whose records nobody reads any more ends, cleanly, and keeps what it
// has built.
func TestReaderGone(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := newServer(t)
	p.task("a", "FROM busybox\nRUN true\n")
	p.task("b", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/b\n")
	p.program("b", "inside")
	cmd := p.command(nil, "-j", "1")
	r, w, err := os.Pipe()
	p.must(err)
	p.must(r.Close())
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &stderr
	p.must(cmd.Start())
	p.must(w.Close())
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(stderr.String(), "writing to standard output: broken pipe") {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	if s.asked("/b") != 0 {
		t.Error("what was left was built")
	}
	p.clean()
	if one := p.build([]string{"a"})["a"]; !one.Cached {
		t.Error("what was built is not there")
	}
}

// Records that cannot be written are no success; nobody has to want them.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN true\n")
	cmd := p.command(nil)
	for where, code := range map[string]int{"> /dev/null": 0, "<> /dev/null 1>&0": 0, "> /dev/full": 3} {
		sh := bed.Command(t, "sh", append([]string{"-c", `exec "$@" ` + where, "sh", cmd.Path}, cmd.Args[1:]...)...)
		r := p.run(sh)
		if r.code != code || (code == 3) != strings.Contains(r.stderr, "standard output") {
			t.Errorf("%s: exit code %d\n%s", where, r.code, r.stderr)
		}
		p.clean()
	}
	if one := p.build(nil)["a"]; !one.Cached {
		t.Error("what was built is not there")
	}
}

// A run goes on when a new version takes the place of its program.
func TestReplacedProgram(t *testing.T) { engines(t, testReplacedProgram) }

func testReplacedProgram(t *testing.T, p *place) {
	s := newServer(t)
	p.task("a", "FROM busybox\nCOPY inside /inside\nRUN /inside get "+s.URL+"/here\nRUN echo then > /then\n")
	p.program("a", "inside")
	cmd := p.command(nil)
	for _, name := range []string{"sifbuild", "fence"} {
		data, err := os.ReadFile(bed.Bin(t, name))
		p.must(err)
		p.write("bin/"+name, string(data), 0o755)
	}
	cmd.Path = p.path("bin/sifbuild")
	s.on(func(string) {
		p.write("bin/new", "#!/bin/false\n", 0o755)
		p.must(os.Rename(p.path("bin/new"), p.path("bin/sifbuild")))
	})
	r := p.built(p.run(cmd))["a"]
	if got := p.file(r.Image, "/then"); got != "then\n" {
		t.Error(got)
	}
}

// What no image can hold is the Dockerfile's fault, in one line that can be read.
func TestNoImageCanHoldIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	nest := "i=0; while [ $i -lt 2500 ]; do mkdir d && cd d; i=$((i+1)); done"
	p.task("run", "FROM busybox\nRUN "+nest+"\n")
	p.task("user", "FROM busybox\nRUN mkdir -m 777 /w\nUSER 7\nWORKDIR /w\nRUN "+nest+"\n")
	p.task("copy", "FROM busybox\nCOPY nested /nested\n")
	p.task("reserved", "FROM busybox\nRUN touch /tmp/.wh.x\n")
	p.mkdir(context("copy") + "/nested")
	at, err := unix.Open(p.path(context("copy")+"/nested"), unix.O_PATH, 0)
	p.must(err)
	for range 2500 {
		p.must(unix.Mkdirat(at, "d", 0o755))
		below, err := unix.Openat(at, "d", unix.O_PATH, 0)
		p.must(err)
		p.must(unix.Close(at))
		at = below
	}
	p.must(unix.Close(at))
	r := p.run(p.command(nil))
	for name, want := range map[string]string{
		"run": "a path of 4096 bytes or more", "user": "a path of 4096 bytes or more", "copy": "a path of 4096 bytes or more",
		"reserved": "begins with .wh. means a removal",
	} {
		one := r.records[name]
		if one.Fault == nil || one.Fault.Class != "source" || !strings.Contains(one.Fault.Message, want) || len(one.Fault.Message) > 1000 {
			t.Errorf("%s: %+v", name, one.Fault)
		}
	}
	p.clean()
}

// A file that is long and takes no room makes a build slow, and nothing of it
// shows why: a warning does, and says which line makes it.
func TestHoles(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN truncate -s 1G /long && truncate -s 1000M /short\n")
	r := p.build(nil, "--no-smoke")["a"]
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], `Dockerfile:2: "/long" is 1 GiB long and mostly holes`) {
		t.Errorf("the warnings are %q", r.Warnings)
	}
}
