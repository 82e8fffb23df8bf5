package sifbuild

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fence/test/bed"
)

// What a RUN line reaches is what probe's own expectation of a build says. The
// same probe beside it, without the fence, does not pass.
func TestRun_ProbeGate(t *testing.T) {
	p := newPlace(t)
	p.task("probe", "FROM busybox\nCOPY probe /probe\nRUN /probe > /report.json; true\n")
	p.program("probe", "probe")
	r := p.build(nil)["probe"]
	p.write("inside.json", p.file(r.Image, "/report.json"), 0o644)
	gate := func(report string) (int, string) {
		cmd := bed.Command(t, bed.Bin(t, "probe"), "gate", report, "--expect", "build")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, out := gate(p.path("inside.json")); code != 0 {
		t.Errorf("a RUN line: exit code %d\n%s", code, out)
	}
	onNode := bed.Command(t, bed.Bin(t, "probe"))
	outside, err := onNode.Output()
	if code := onNode.ProcessState.ExitCode(); code != 0 && code != 3 { // 3: one of the site's mounts does not answer
		t.Fatal(err)
	}
	p.write("outside.json", string(outside), 0o644)
	if code, out := gate(p.path("outside.json")); code != 1 {
		t.Errorf("the control, on the node: exit code %d\n%s", code, out)
	}
}

// Each attempt works for the same user on the node, and not in a RUN line.
func TestRun_ReachesNothingOfTheNode(t *testing.T) {
	p := newPlace(t)
	_, _, home := bed.User(t)
	secret := filepath.Join(bed.HomeDir(t), "token")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sleeper := bed.Command(t, "sleep", "infinity")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	pid := sleeper.Process.Pid
	defer func() { sleeper.Process.Kill(); sleeper.Wait() }()

	socket, name := p.path("socket"), "fence-test-"+filepath.Base(p.dir)
	for _, at := range []string{socket, "@" + name} {
		l, err := net.Listen("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	p.write("tasks/other/environment/file", "another task's\n", 0o644)
	p.write("cache/file", "of the cache\n", 0o644)
	attempts := []string{
		"read:" + secret,
		"read:" + home,
		"write:" + filepath.Dir(secret),
		"read:" + p.dir,
		"read:" + p.path("cache/file"),
		"write:" + p.path("cache"),
		"write:" + p.path("scratch"),
		"read:" + p.path("tasks/other/environment/file"),
		"read:" + p.path("tasks/attempts/tests/test.sh"),
		"read:" + p.path("tasks/attempts/environment/Dockerfile"),
		"read:" + bed.ProjectReadme,
		"descriptor:../../../../../../../../../.." + secret,
		fmt.Sprintf("signal:%d", pid),
		fmt.Sprintf("environ:%d", pid),
		"others:sleep",
		"unix:" + socket,
		"abstract:" + name,
	}
	for _, at := range []string{"/run/munge/munge.socket.2", "/run/dbus/system_bus_socket"} {
		if c, err := net.Dial("unix", at); err == nil {
			c.Close()
			attempts = append(attempts, "unix:"+at)
		}
	}
	tried := func(text string) map[string]string {
		all := map[string]string{}
		for line := range strings.Lines(text) {
			attempt, result, _ := strings.Cut(strings.TrimSpace(line), "\t")
			all[attempt] = result
		}
		return all
	}
	p.task("attempts", "FROM busybox\nCOPY inside /inside\nRUN /inside try '"+strings.Join(attempts, "' '")+"' > /tried; kill -KILL -1; true\n")
	p.program("attempts", "inside")
	onNode := bed.Command(t, inside(t), append([]string{"try"}, attempts...)...)
	root, err := os.Open("/") // as if it had been left open
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	onNode.ExtraFiles = []*os.File{root}
	out, err := onNode.Output()
	if err != nil {
		t.Fatal(err)
	}
	node := tried(string(out))
	r := p.build([]string{"attempts"})["attempts"]
	run := tried(p.file(r.Image, "/tried"))
	for _, a := range attempts {
		if node[a] != "works" {
			t.Errorf("the control, on the node: %s: %s", a, node[a])
		}
		if run[a] == "works" || run[a] == "" || strings.HasPrefix(run[a], "BUG") {
			t.Errorf("in a RUN line: %s: %q", a, run[a])
		}
	}
	if err := syscall.Kill(pid, 0); err != nil || exited(sleeper) {
		t.Error("a RUN line has ended a process of the user's")
	}
}

// exited says whether a child has ended, and leaves it to be waited for.
func exited(cmd *exec.Cmd) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	return err != nil || strings.Contains(string(data), ") Z ")
}
