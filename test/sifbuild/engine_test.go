package sifbuild

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fence/test/bed"
)

// settings are the caller's for Apptainer, each of which would keep a container
// from starting as it must, and what else is none of its business.
func (p *place) settings() []string {
	return []string{"HOME=" + p.path("home"), "SECRET=of-the-caller",
		"APPTAINER_BIND=/nowhere:/nowhere", "APPTAINER_BINDPATH=/nowhere", "SINGULARITY_BIND=/nowhere", "APPTAINER_NO_MOUNT=bind-paths,sys,proc",
		"APPTAINER_CONTAINALL=1", "APPTAINER_OVERLAY=/nowhere", "APPTAINER_NETWORK=none", "APPTAINER_NET=1", "APPTAINER_PWD=/nowhere",
		"APPTAINER_CACHEDIR=/proc/nowhere", "APPTAINER_TMPDIR=/proc/nowhere", "APPTAINER_CONFIGDIR=/proc/nowhere", "APPTAINERENV_SECRET=of-the-caller"}
}

// Engines give the same images under the same names, and take up each other's
// steps, whatever the caller has set for Apptainer. Nothing is written to the
// home folder.
func TestEngines_Same(t *testing.T) {
	t.Parallel()
	bed.Require(t, "apptainer", "site")
	p := newPlace(t)
	p.everyKind()
	p.task("b", "FROM busybox\nRUN env | grep -e APPTAINER -e SINGULARITY -e SECRET -e nowhere > /env; ls -d "+bed.Project+" >> /env; true\n")
	native := p.build(nil)
	want, layers := p.listing(native["a"].Image), p.names("cache/layers")

	p.engine = "sandbox"
	p.mkdir("home")
	sandbox := func() *exec.Cmd {
		cmd := p.command(nil)
		cmd.Env = append(cmd.Env, p.settings()...)
		return cmd
	}
	for _, one := range p.built(p.run(sandbox())) {
		if !one.Cached || one.Engine != "native" {
			t.Errorf("%s was built by the native engine, and again: by %q", one.Name, one.Engine)
		}
	}
	p.must(os.RemoveAll(p.path("cache/sif")))
	if a := p.built(p.run(sandbox()))["a"]; a.Key != native["a"].Key || a.Built == 0 || a.Reused != 3 {
		t.Errorf("key %s, and was %s; %d steps done, %d out of the cache", a.Key, native["a"].Key, a.Built, a.Reused)
	}
	p.empty()
	all := p.built(p.run(sandbox()))
	p.same(want, p.listing(all["a"].Image))
	if all["a"].Engine != "sandbox" {
		t.Errorf("the record says that the engine is %q", all["a"].Engine)
	}
	if got := p.names("cache/layers"); got != layers {
		t.Errorf("the steps in the cache are\n%s\nand were\n%s", got, layers)
	}
	if env := p.file(all["b"].Image, "/env"); env != "" {
		t.Errorf("a RUN line sees of the caller:\n%s", env)
	}
	if got := p.names("home"); got != "" {
		t.Errorf("in the home folder: %s", got)
	}
}

// names are those in a folder.
func (p *place) names(dir string) string {
	p.t.Helper()
	entries, err := os.ReadDir(p.path(dir))
	p.must(err)
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintln(&b, e.Name())
	}
	return b.String()
}

// On a node that allows user namespaces to Apptainer alone, the native engine
// says what to do, and that works.
func TestSandbox_OnlyApptainerMay(t *testing.T) {
	t.Parallel()
	bed.Require(t, "apptainer", "site", "nonet")
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN id -u > /root-is; cat /proc/self/uid_map > /map\nUSER 4242\nRUN id -u > /tmp/user-is\n")
	bin := p.apptainerOutside()
	limited := func(engine string) result {
		t.Helper()
		p.engine = engine
		cmd := p.command(nil)
		args := append([]string{}, cmd.Args[1:]...)
		on := bed.NoUserns(t, cmd.Path, args...)
		for i, kv := range on.Env {
			if path, ok := strings.CutPrefix(kv, "PATH="); ok {
				on.Env[i] = "PATH=" + bin + ":" + path
			}
		}
		return p.run(on)
	}
	if r := limited("native"); r.code != 2 || !strings.Contains(r.stderr, "\nhint: inside Apptainer it can: --engine sandbox\n") {
		t.Errorf("native: exit code %d\n%s", r.code, r.stderr)
	}
	p.clean()
	a := p.built(limited("sandbox"))["a"]
	for name, want := range map[string]string{"/root-is": "0\n", "/tmp/user-is": "4242\n"} {
		if got := p.file(a.Image, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// apptainerOutside is a folder for PATH with a stand-in for Apptainer, which has
// the test start the real one: so that is not held to what its caller is.
func (p *place) apptainerOutside() string {
	p.t.Helper()
	p.mkdir("outside")
	data, err := os.ReadFile(inside(p.t))
	p.must(err)
	p.write("outside/apptainer", string(data), 0o755)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.path("outside/socket"), Net: "unixpacket"})
	p.must(err)
	p.must(os.Chmod(p.path("outside/socket"), 0o777))
	var all sync.WaitGroup
	p.t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				if err := p.serveApptainer(c); err != nil {
					p.t.Errorf("Apptainer outside: %v", err)
				}
			})
		}
	})
	return p.path("outside")
}

// serveApptainer starts the real Apptainer for one caller, and ends it with that.
func (p *place) serveApptainer(c *net.UnixConn) error {
	msg, oob := make([]byte, 64<<10), make([]byte, 1024)
	n, k, _, _, err := c.ReadMsgUnix(msg, oob)
	if err != nil {
		return err
	}
	var q struct {
		Args, Env []string
	}
	if err := json.Unmarshal(msg[:n], &q); err != nil {
		return err
	}
	cmds, err := unix.ParseSocketControlMessage(oob[:k])
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&cmds[0])
	if err != nil {
		return err
	}
	var files []*os.File
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "given")
		defer f.Close()
		files = append(files, f)
	}
	cmd := bed.Apptainer(p.t, q.Args[1:]...)
	cmd.Env, cmd.Dir = q.Env, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = files[0], files[1], files[2], files[3:]
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, f := range files {
		f.Close()
	}
	go func() {
		io.Copy(io.Discard, c)
		cmd.Process.Signal(syscall.SIGTERM)
	}()
	cmd.Wait()
	_, err = c.Write([]byte{byte(cmd.ProcessState.ExitCode())})
	return err
}

// A container that comes to its end takes its build with it, and no other one:
// there is a new one for that, even if a new version has taken the place of
// this program.
func TestSandbox_ContainerIsKilled(t *testing.T) {
	t.Parallel()
	bed.Require(t, "apptainer", "site")
	p := newPlace(t)
	p.engine = "sandbox"
	s := newServer(t)
	p.task("a", "FROM busybox\nENV PLACE="+p.dir+"\nCOPY inside /inside\nRUN /inside leave "+s.URL+"/stay; /inside get "+s.URL+"/here\n")
	p.task("b", "FROM busybox\nRUN echo b > /b\n")
	p.program("a", "inside")
	cmd := p.command(nil, "-j", "1", "--retries", "0")
	for _, name := range []string{"sifbuild", "fence"} {
		data, err := os.ReadFile(bed.Bin(t, name))
		p.must(err)
		p.write("bin/"+name, string(data), 0o755)
	}
	cmd.Path = p.path("bin/sifbuild")
	s.on(func(path string) {
		if path != "/here" {
			return
		}
		p.write("bin/new", "#!/bin/false\n", 0o755)
		p.must(os.Rename(p.path("bin/new"), p.path("bin/sifbuild")))
		killed := 0
		for _, pid := range p.processes() {
			if data, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline")); strings.Contains(string(data), "\x00step-serve\x00") {
				killed++
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if killed == 0 {
			t.Error("the control: there is no container")
		}
		<-t.Context().Done() // the line does not end by itself
	})
	r := p.run(cmd)
	if a := r.records["a"]; r.code != 3 || a.Fault == nil || a.Fault.Class != "engine" || !a.Fault.Retry {
		t.Errorf("exit code %d, %+v\n%s", r.code, a.Fault, r.stderr)
	}
	if b := r.records["b"]; b.Fault != nil {
		t.Errorf("the other: %+v", b.Fault)
	}
	p.clean()
	s.on(nil)
	p.build(nil)
}

// An Apptainer that hangs at its start holds up nobody who has had enough.
func TestSandbox_ApptainerHangs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.engine = "sandbox"
	s := newServer(t)
	p.task("a", "FROM busybox\nRUN true\n")
	data, err := os.ReadFile(inside(t))
	p.must(err)
	p.write("hangs/inside", string(data), 0o755)
	p.write("hangs/apptainer", "#!/bin/sh\nsetsid "+p.path("hangs/inside")+" stay "+s.URL+"/here &\nwait\n", 0o755)
	cmd := p.command(nil)
	for i, kv := range cmd.Env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Env[i] = "PATH=" + p.path("hangs") + ":" + path
		}
	}
	s.on(func(string) {
		if len(p.staying()) == 0 {
			t.Error("the control: nothing hangs")
		}
		cmd.Process.Signal(syscall.SIGTERM)
	})
	start(t, cmd)
	r := p.wait(cmd)
	if a := r.records["a"]; r.code != 3 || a.Fault == nil || a.Fault.Class != "stopped" {
		t.Errorf("exit code %d, %+v\n%s", r.code, a.Fault, r.stderr)
	}
	p.clean()
}
