package rollout

import (
	"context"
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
