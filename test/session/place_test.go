package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/session"
	"fence/test/bed"
)

// place is a session of two domains in a container, and its client.
type place struct {
	t *testing.T
	*session.Client
	runtime *exec.Cmd // apptainer, the leader of a session of its own
	serve   int       // or fence serve, which keeps it
	hangUp  func()    // as if the caller had died
	said    *bytes.Buffer
	mark    string // no other process on the machine has it in its arguments
	overlay string // of its container, if it has one
}

var marks atomic.Int64

// newMark is a number of seconds for sleep, longer than any test.
func newMark() string {
	return fmt.Sprintf("86400.%d%03d", os.Getpid(), marks.Add(1))
}

// inContainer is a shell line of the person's that has `fence env` in force,
// on a node with those limits of /proc/sys/user.
func inContainer(t *testing.T, script string, limits ...string) *exec.Cmd {
	t.Helper()
	bed.Require(t, "images", "site")
	script = `eval "$(fence env)"; export IMG=` + bed.Image("debian") + "\n" + script
	cmd := bed.Command(t, "bash", "-c", script)
	if len(limits) > 0 {
		cmd = bed.Limited(t, limits, "bash", "-c", script)
	}
	withFence(t, cmd)
	return cmd
}

func withFence(t *testing.T, cmd *exec.Cmd) {
	for i, kv := range cmd.Env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Env[i] = "PATH=" + filepath.Dir(bed.Bin(t, "fence")) + ":" + path
		}
	}
}

// newPlace starts a session as a harness does: one end of a socket pair is
// descriptor 0 of apptainer.
func newPlace(t *testing.T, form string, flags ...string) *place {
	t.Helper()
	args := ""
	for _, d := range []string{"agent", "verifier"} {
		args += " --domain " + d + "=strict --flag " + d + ":form=" + form
	}
	return placeOf(t, inContainer(t, `exec apptainer -q exec $IMG /.fence/fence serve --stdio`+args+" "+strings.Join(flags, " ")))
}

// placeOf starts what becomes, or has in it, a fence serve --stdio.
func placeOf(t *testing.T, runtime *exec.Cmd) *place {
	t.Helper()
	p := &place{t: t, said: &bytes.Buffer{}, mark: newMark(), runtime: runtime}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "channel")
	p.runtime.Stdin, p.runtime.Stderr = theirs, p.said
	if p.runtime.SysProcAttr == nil {
		p.runtime.SysProcAttr = &syscall.SysProcAttr{}
	}
	p.runtime.SysProcAttr.Setsid = true
	if err := p.runtime.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	client, channel, err := session.Over(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	p.Client, p.hangUp = client, func() { channel.Close() }
	t.Cleanup(func() {
		p.hangUp()
		_ = p.runtime.Wait()
		p.nothingLeft()
		if t.Failed() {
			t.Logf("the session said\n%s", p.said)
		}
	})
	if _, err := p.Status(t.Context()); err != nil {
		p.runtime.Process.Kill()
		t.Fatalf("%v\n%s", err, p.said)
	}
	return p
}

// forms runs a test in a session of each form.
func forms(t *testing.T, f func(p *place)) {
	for _, form := range []string{"namespace", "bare"} {
		t.Run(form, func(t *testing.T) { f(newPlace(t, form)) })
	}
}

// nothingLeft waits until no process of the container is there, nor a helper
// of the runtime's.
func (p *place) nothingLeft() {
	p.t.Helper()
	sid := p.runtime.Process.Pid
	waitGone(p.t, "what came of "+p.runtime.String(), func(pid int) bool {
		return slices.Contains(cmdline(pid), p.mark) || stat(pid, 3) == strconv.Itoa(sid)
	})
}

// waitGone waits for the end of every process that is meant.
func waitGone(t *testing.T, what string, meant func(pid int) bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		pids := find(meant)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(deadline).Milliseconds())))
			unix.Close(fd)
			if n == 0 {
				t.Errorf("%s: process %d is left: %q", what, pid, cmdline(pid))
				_ = unix.Kill(pid, unix.SIGKILL)
				return
			}
		}
	}
}

// find lists processes that have not ended.
func find(meant func(pid int) bool) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var out []int
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if s := stat(pid, 0); s != "" && s != "Z" && meant(pid) {
			out = append(out, pid)
		}
	}
	return out
}

func marked(mark string) func(int) bool {
	return func(pid int) bool { return slices.Contains(cmdline(pid), mark) }
}

func cmdline(pid int) []string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
}

// stat is a field of /proc/PID/stat behind the name: 0 is the state, 1 the
// parent, 3 the session.
func stat(pid, field int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(f) <= field {
		return ""
	}
	return f[field]
}

func descends(pid, from int) bool {
	for pid > 1 && pid != from {
		pid, _ = strconv.Atoi(stat(pid, 1))
	}
	return pid == from
}

// ownName is a process's number in its own PID namespace.
func ownName(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(data), "\nNSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	return line[strings.LastIndexByte(line, '\t')+1:]
}

type result struct {
	out, err string
	exit     session.Exit
}

func (p *place) try(cmd session.Command, in string) (result, error) {
	if cmd.Domain == "" {
		cmd.Domain = "agent"
	}
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Minute)
	defer cancel()
	exit, err := p.Run(ctx, cmd, session.Streams{In: strings.NewReader(in), Out: &out, Err: &errs})
	return result{out.String(), errs.String(), exit}, err
}

func (p *place) do(cmd session.Command, in string) result {
	p.t.Helper()
	r, err := p.try(cmd, in)
	if err != nil {
		p.t.Fatalf("%q: %v\n%s", cmd.Argv, err, p.said)
	}
	return r
}

// sh runs a script in a domain; it must end with 0.
func (p *place) sh(domain, script string) string {
	p.t.Helper()
	r := p.do(session.Command{Domain: domain, Argv: []string{"bash", "-c", script, "bash", p.mark}}, "")
	if r.exit.Code != 0 {
		p.t.Fatalf("%s: %s: exit code %d\n%s%s", domain, script, r.exit.Code, r.out, r.err)
	}
	return r.out
}

// code is the exit code of an error of the session's, 0 if it is none.
func code(err error) int {
	var e *session.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
