package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/apptainer"
	"fence/pkg/box"
	"fence/pkg/session"
	"fence/test/bed"
)

// What cannot be started says so by its class, and leaves nothing.
func TestStart_Refused(t *testing.T) {
	if !asUser(t) {
		return
	}
	text := filepath.Join(bed.TempDir(t), "text.sif")
	if err := os.WriteFile(text, []byte(strings.Repeat("no image\n", 99)), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*box.Options)
		class  string
	}{
		"no image":          {func(o *box.Options) { o.Image += ".gone" }, "image_missing"},
		"a damaged image":   {func(o *box.Options) { o.Image = text }, "image_invalid"},
		"no Apptainer":      {func(o *box.Options) { o.Apptainer += ".gone" }, "apptainer_missing"},
		"not an Apptainer":  {func(o *box.Options) { o.Apptainer = "/bin/false" }, "start_failed"},
		"no scratch":        {func(o *box.Options) { o.Scratch += ".gone" }, "scratch_gone"},
		"no fence":          {func(o *box.Options) { o.Fence += ".gone" }, "start_failed"},
		"no such policy":    {func(o *box.Options) { o.Opens = []box.Open{{Syscall: "no_such_call", Why: "a test"}} }, "start_failed"},
		"no reason":         {func(o *box.Options) { o.Opens = []box.Open{{Path: "/x", Access: "read"}} }, "start_failed"},
		"a folder in /proc": {func(o *box.Options) { o.Workdir = "/proc/x" }, "start_failed"},
		"nothing to bind":   {func(o *box.Options) { o.Binds = []box.Bind{{Source: o.Scratch + "/gone", Target: "/wheels"}} }, "start_failed"},
	} {
		o := options(t, "debian")
		c.change(&o)
		b, err := box.Start(t.Context(), o)
		if class(err) != c.class {
			t.Errorf("%s: %s, want %s: %v", name, class(err), c.class, err)
		}
		if b != nil {
			b.Close()
		}
		nothingLeft(t, o.Scratch)
		t.Logf("%s: %v", name, err)
	}
	late, stop := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer stop()
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for want, ctx := range map[string]context.Context{"start_timeout": late, "stopped": stopped} {
		o := options(t, "debian")
		if _, err := box.Start(ctx, o); class(err) != want {
			t.Errorf("%s: %v", want, err)
		}
		nothingLeft(t, o.Scratch)
	}
}

// The gate lets boxes pass, with and without a network of the container's own,
// and for whoever the commands are.
func TestGate(t *testing.T) {
	if !asUser(t) {
		return
	}
	for _, change := range []func(*box.Options){
		func(o *box.Options) { o.Network = "none" },
		func(o *box.Options) {},
		func(o *box.Options) { o.AgentUser = "1000:1000" },
		func(o *box.Options) { o.Network, o.Why = "host", "a test" },
	} {
		o := options(t, "busybox")
		change(&o)
		record, err := box.Gate(t.Context(), o)
		if o.Network == "loopback" && noNetns() {
			// Nothing shows there that what a supervisor refused was there to be reached.
			if class(err) != "gate_failed" || !strings.Contains(err.Error(), `"could not tell" to `) || strings.Contains(err.Error(), `"no"`) {
				t.Errorf("without network namespaces: %v", err)
			}
			continue
		}
		if err != nil || !strings.Contains(string(record), `"probe.gate/v1"`) {
			t.Errorf("%s %s: %v\n%s", o.Network, o.AgentUser, err, record)
		}
		nothingLeft(t, o.Scratch)
	}
	// Where a key of the site's is in it, whatever the reason, it does not.
	o := options(t, "busybox")
	key := filepath.Join(bed.TempDir(t), "key")
	if err := os.WriteFile(key, []byte("a secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Binds = []box.Bind{{Source: key, Target: "/etc/munge/munge.key", Why: "a test"}}
	if _, err := box.Gate(t.Context(), o); class(err) != "gate_failed" || !strings.Contains(err.Error(), "cred.files") {
		t.Errorf("the control: %v", err)
	}
}

// At its deadline a command ends with all of its session; so does one whose
// caller has gone.
func TestBox_Timeout(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "debian"))
	const tree = `trap "" TERM; (trap "" TERM; sleep 86400.75 & sleep 86400.75) & sleep 86400.75 & set -m; sleep 86400.75 & echo up >/tmp/up; wait; wait; sleep 86400.75`
	const count = `pgrep -fc '^sleep 86400.75'; true`
	got, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"bash", "-c", tree}, Timeout: time.Second}, "")
	if err != nil || !got.TimedOut {
		t.Errorf("%v %+v", err, got)
	}
	if left := r.sh(box.Verifier, count); left != "0\n" {
		t.Errorf("left are %s", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, box.Command{Domain: box.Agent, Argv: []string{"bash", "-c", "rm /tmp/up; " + tree}}, session.Streams{})
		ended <- err
	}()
	if n := r.sh(box.Verifier, `until [ -e /tmp/up ] && [ $(pgrep -fc '^sleep 86400.75') -ge 4 ]; do :; done; echo 4`); n != "4\n" {
		t.Fatalf("the control: %s", n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	r.sh(box.Verifier, `until [ $(pgrep -fc '^sleep 86400.75') = 0 ]; do :; done`)
}

// Close removes what is hard to remove, and says nothing the second time.
func TestBox_Close(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "debian"))
	r.sh(box.Agent, `for d in /app /tmp /dev/shm; do mkdir -p $d/a/b; echo x >$d/a/b/x; chmod 0 $d/a/b $d/a; done; mkfifo /pipe; rm -rf /srv /media; mv /etc/skel /skel
		python3 -c 'if True:
		import os, socket
		os.chdir("/tmp"); socket.socket(socket.AF_UNIX).bind("/app/socket")
		for i in range(300): os.mkdir("d" * 200); os.chdir("d" * 200)'`)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, r.o.Scratch)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"true"}}, ""); class(err) != "stopped" {
		t.Errorf("%v", err)
	}
}

// The folder of a box that somebody removes is a fault of the node's.
func TestBox_ScratchIsGone(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "debian"))
	if err := os.Rename(r.o.Scratch, r.o.Scratch+".away"); err != nil {
		t.Fatal(err)
	}
	<-r.Done()
	if class(r.Err()) != "scratch_gone" {
		t.Errorf("%v", r.Err())
	}
	if err := os.Rename(r.o.Scratch+".away", r.o.Scratch); err != nil {
		t.Fatal(err)
	}
}

// Where the node allows no network namespaces, a box is up all the same.
func TestBox_NoNetns(t *testing.T) {
	bed.Require(t, "users", "images", "site", "nonet")
	plain := userTest(t, asUserVar+"=1")
	cmd := bed.NoNetns(t, plain.Path, "-test.run=^(TestBox|TestBox_Inside|TestGate|TestBox_Config)$", "-test.v")
	cmd.Env, cmd.Dir = plain.Env, plain.Dir
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS: Test") != 4 {
		t.Errorf("%v\n%s", err, out)
	}
}

// The gate is asked once for each image, however many trials that has, also where
// two have one name.
func TestRun_Gate(t *testing.T) {
	p := newPlace(t)
	data, err := os.ReadFile(bed.Image("busybox"))
	if err != nil {
		t.Fatal(err)
	}
	var records bytes.Buffer
	for task, image := range map[string]string{"a1": "a/i.sif", "a2": "a/i.sif", "b1": "b/i.sif", "b2": "b/i.sif"} {
		p.task(task, "touch /it; cat /proc/self/mountinfo /proc/*/cmdline /proc/*/environ\n", rewards, "")
		p.write(image, string(data))
		if err := json.NewEncoder(&records).Encode(map[string]any{"schema": "sifbuild.image/v1", "task": p.path("tasks", task), "image": p.path(image)}); err != nil {
			t.Fatal(err)
		}
	}
	p.write("bin/apptainer", "#!/bin/sh\necho \"$*\" >>"+p.path("out/started")+"\nexec "+filepath.Join(bed.Dir(), "bin", "apptainer")+" \"$@\"\n")
	if err := os.Chmod(p.path("bin/apptainer"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := p.command("run", "-", "--agent", "oracle", "--out", "out/run", "--scratch", p.path("scratch"), "-n", "4")
	cmd.Stdin = &records
	for i, kv := range cmd.Env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Env[i] = "PATH=" + p.path("bin") + ":" + path
		}
	}
	r := p.run(cmd)
	for _, task := range []string{"a1", "a2", "b1", "b2"} {
		p.came(r, "oracle "+task, "1")
		if i := r.records["oracle "+task].Isolation; i == nil || i.Gate != "pass" {
			t.Errorf("%s: %+v", task, i)
		}
		// What a trial can see of the node's paths says nothing of tasks, results or images.
		seen, err := os.ReadFile(p.path("out/run", r.records["oracle "+task].TrialName, "agent/oracle.txt"))
		if err != nil || !strings.Contains(string(seen), p.path("scratch")+"/rollout-") {
			t.Errorf("the control: %v\n%s", err, seen)
		}
		for _, name := range []string{task + "__", p.path("tasks"), p.path("out"), "i.sif"} {
			if strings.Contains(string(seen), name) {
				t.Errorf("%s: it sees %s in\n%s", task, name, seen)
			}
		}
	}
	started, err := os.ReadFile(p.path("out/started"))
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"a/i.sif", "b/i.sif"} {
		if n := strings.Count(string(started), p.path(image)); n != 3 {
			t.Errorf("%s: %d containers, want those of two trials and of a gate", image, n)
		}
	}
	if gates, err := os.ReadDir(p.path("out/run/.rollout/gates")); err != nil || len(gates) != 2 {
		t.Errorf("what gates said: %v, %v", gates, err)
	}
}

// Where nobody may make user namespaces, no trial is tried.
func TestRun_NoUserns(t *testing.T) {
	p := newPlace(t)
	p.task("a", "touch /it\n", rewards, "")
	for _, limit := range []string{"max_user_namespaces=0", "max_user_namespaces=1000"} {
		plain := p.command(p.args("run", "--agent", "oracle")...)
		cmd := bed.Limited(t, []string{limit}, plain.Path, plain.Args[1:]...)
		cmd.Env, cmd.Dir = plain.Env, plain.Dir
		r := p.run(cmd)
		if limit != "max_user_namespaces=0" {
			p.came(r, "oracle a", "1") // the control
			continue
		}
		lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
		if r.code != 2 || len(r.records) > 0 || len(lines) != 2 || !strings.HasPrefix(lines[0], "rollout: this node cannot run trials: ") || !strings.Contains(lines[1], "sysctl user.max_user_namespaces") {
			t.Errorf("exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
		}
	}
}

func noNetns() bool {
	n, _ := os.ReadFile("/proc/sys/user/max_net_namespaces")
	return string(n) == "0\n"
}

// In want of memory the kernel ends what is in a box before anything else. And
// Apptainer has no process that only waits.
func TestBox_Memory(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "busybox"))
	all := map[string]int{}
	for _, pid := range apptainer.Below(os.Getpid()) {
		all[comm(pid)]++
	}
	if all["starter"] == 0 || all["apptainer"] > 0 {
		t.Errorf("of Apptainer's there are %v", all)
	}
	for _, d := range []string{box.Agent, box.Verifier} {
		if got := r.sh(d, `cat /proc/self/oom_score_adj; echo 0 2>/dev/null >/proc/self/oom_score_adj || echo no`); got != "1000\nno\n" {
			t.Errorf("%s: %q", d, got)
		}
	}
}
