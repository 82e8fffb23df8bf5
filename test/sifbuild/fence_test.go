package sifbuild

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fence/test/bed"
)

// users are who RUN lines are run as, by the instruction that says so.
var users = map[string]string{"root": "", "somebody": "USER 4242:4243\n"}

// What a RUN line reaches is what probe's own expectation of a build says. The
// same probe beside it, without the fence, does not pass.
func TestRun_ProbeGate(t *testing.T) { engines(t, testRunProbeGate) }

func testRunProbeGate(t *testing.T, p *place) {
	for name, user := range users {
		p.task(name, "FROM busybox\nCOPY probe /probe\nRUN mkdir -m 777 /out\n"+user+"RUN /probe > /out/report.json; true\n")
		p.program(name, "probe")
	}
	all := p.build(nil)
	gate := func(report string) (int, string) {
		cmd := bed.Command(t, bed.Bin(t, "probe"), "gate", report, "--expect", "build")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	for name := range users {
		p.write(name+".json", p.file(all[name].Image, "/out/report.json"), 0o644)
		if code, out := gate(p.path(name + ".json")); code != 0 {
			t.Errorf("a RUN line of %s: exit code %d\n%s", name, code, out)
		}
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
func TestRun_ReachesNothingOfTheNode(t *testing.T) { engines(t, testRunReachesNothingOfTheNode) }

func testRunReachesNothingOfTheNode(t *testing.T, p *place) {
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
		"read:" + p.path("tasks/root/tests/test.sh"),
		"read:" + p.path("tasks/root/environment/Dockerfile"),
		"read:" + bed.ProjectReadme,
		"descriptor:../../../../../../../../../.." + secret,
		fmt.Sprintf("signal:%d", pid),
		fmt.Sprintf("environ:%d", pid),
		"others:sleep",
		"unix:" + socket,
		"abstract:" + name,
	}
	p.refused(t, attempts...)
	if err := syscall.Kill(pid, 0); err != nil || exited(sleeper) {
		t.Error("a RUN line has ended a process of the user's")
	}
}

// Nor does it reach what lets a user act on the cluster.
func TestRun_ReachesNoMunge(t *testing.T) {
	t.Parallel()
	bed.Require(t, "slurm")
	newPlace(t).refused(t, "unix:/run/munge/munge.socket.2", "read:/etc/slurm/slurm.conf")
}

// refused says of attempts that each works for the user on the node, and for
// none of users in a RUN line, which then tries to end all that it can.
func (p *place) refused(t *testing.T, attempts ...string) {
	t.Helper()
	tried := func(text string) map[string]string {
		all := map[string]string{}
		for line := range strings.Lines(text) {
			attempt, result, _ := strings.Cut(strings.TrimSpace(line), "\t")
			all[attempt] = result
		}
		return all
	}
	for name, user := range users {
		p.task(name, "FROM busybox\nCOPY inside /inside\nRUN mkdir -m 777 /out\n"+user+"RUN /inside try '"+strings.Join(attempts, "' '")+"' > /out/tried; kill -KILL -1; true\n")
		p.program(name, "inside")
	}
	onNode := bed.Command(t, inside(t), append([]string{"try"}, attempts...)...)
	root, err := os.Open("/") // as if it had been left open
	p.must(err)
	defer root.Close()
	onNode.ExtraFiles = []*os.File{root}
	out, err := onNode.Output()
	p.must(err)
	node := tried(string(out))
	all := p.build(slices.Collect(maps.Keys(users)))
	for _, a := range attempts {
		if node[a] != "works" {
			t.Errorf("the control, on the node: %s: %s", a, node[a])
		}
	}
	for name := range users {
		run := tried(p.file(all[name].Image, "/out/tried"))
		for _, a := range attempts {
			if run[a] == "works" || run[a] == "" || strings.HasPrefix(run[a], "BUG") {
				t.Errorf("in a RUN line of %s: %s: %q", name, a, run[a])
			}
		}
	}
}

// exited says whether a child has ended, and leaves it to be waited for.
func exited(cmd *exec.Cmd) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	return err != nil || strings.Contains(string(data), ") Z ")
}
