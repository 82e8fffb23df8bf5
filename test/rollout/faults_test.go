package rollout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/bed"
	ms "fence/test/modelserver"
)

// asleep waits for the solution that has begun to sleep.
func (p *place) asleep() {
	p.t.Helper()
	p.await("a solution that sleeps", func() bool {
		return slices.ContainsFunc(processes(p.path("scratch")), func(pid int) bool { return comm(pid) == "sleep" })
	})
}

// await waits until something is there.
func (p *place) await(what string, there func() bool) {
	p.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !there(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not there: %s", what)
		}
	}
}

// What breaks a trial is a fault with its cause and no reward, though its
// solution has done what the tests reward. The control is the same task when
// nothing breaks.
func TestRun_Faults(t *testing.T) {
	for name, c := range map[string]struct {
		want string // class, cause, phase
		do   func(p *place)
	}{
		"apptainer is killed": {"container_killed infra agent", func(p *place) {
			for _, pid := range processes(p.path("scratch")) {
				if strings.HasPrefix(comm(pid), "starter") {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}},
		"the session is killed": {"container_killed infra agent", func(p *place) {
			killed := 0
			for _, pid := range processes(p.path("scratch")) {
				args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if strings.HasPrefix(string(args), "/.fence/fence\x00serve\x00") && unix.Kill(pid, unix.SIGKILL) == nil {
					killed++
				}
			}
			if killed != 1 {
				p.t.Errorf("%d sessions killed", killed)
			}
		}},
		"scratch vanishes": {"scratch_gone infra agent", func(p *place) {
			all, err := filepath.Glob(p.path("scratch/*"))
			if err != nil || len(all) == 0 {
				p.t.Errorf("nothing in scratch: %v, %v", all, err)
			}
			for _, dir := range all {
				if err := os.Rename(dir, p.path("out", filepath.Base(dir))); err != nil {
					p.t.Error(err)
				}
			}
		}},
		"nothing breaks": {"1", func(p *place) {
			for _, pid := range processes(p.path("scratch")) {
				if comm(pid) == "sleep" {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.task("slow", "touch /it\nexec sleep 100000\n", rewards, "")
			ran := make(chan ran, 1)
			go func() {
				defer close(ran)
				ran <- p.run(p.command(p.args("run", "--agent", "oracle", "--retries", "0")...))
			}()
			p.asleep()
			c.do(p)
			r := <-ran
			p.came(r, "oracle slow", c.want)
		})
	}
}

// came compares how a trial came out with its reward, or with its fault's class,
// cause and phase.
func (p *place) came(r ran, key, want string) {
	p.t.Helper()
	rec := r.records[key]
	got := word(rec)
	if f := rec.Fault; f != nil {
		got = fmt.Sprintf("%s %s %s", f.Class, f.Cause, f.Phase)
	}
	if got != want || rec.Fault != nil && (rec.Reward != nil || r.code != 3) {
		p.t.Errorf("%s: %s, want %s; %+v, reward %v, exit code %d\n%s", key, got, want, rec.Fault, rec.Reward, r.code, r.stderr)
	}
}

// smallDisk makes a folder a small disk.
func (p *place) smallDisk(name, options string) string {
	p.t.Helper()
	if os.Geteuid() != 0 {
		bed.Missing(p.t, "root: only root can mount a small disk")
	}
	p.mkdir(name)
	at := p.path(name)
	uid, gid, _ := bed.User(p.t)
	if err := unix.Mount("test-rollout", at, "tmpfs", 0, fmt.Sprintf("%s,mode=755,uid=%d,gid=%d", options, uid, gid)); err != nil {
		bed.Missing(p.t, "the right to mount a tmpfs (%v)", err)
	}
	p.t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

// On a small disk each trial has its share, and the one that takes more is ended.
func TestRun_DiskShare(t *testing.T) {
	p := newPlace(t)
	p.smallDisk("scratch", "size=64m")
	p.task("small", "dd if=/dev/zero of=/big bs=1M count=10 && touch /it\n", rewards, "")
	p.task("large", "dd if=/dev/zero of=/big bs=1M count=40 && touch /it; exec sleep 100000\n", rewards, "")
	r := p.run(p.command(p.args("run", "--agent", "oracle", "-n", "2", "--retries", "0")...))
	p.came(r, "oracle small", "1")
	p.came(r, "oracle large", "disk_limit task agent")
	if !strings.Contains(r.stderr, " MB of each trial: --scratch another") {
		t.Errorf("%s", r.stderr)
	}
}

// Whoever fills the disk, with bytes or with files, has it to answer for; seven
// trials beside it come out as they do without, and none by what it could not
// write.
func TestRun_DiskFull(t *testing.T) {
	for name, c := range map[string]struct{ disk, fill string }{
		"bytes": {"size=64m", "dd if=/dev/zero of=/full bs=1M"},
		"files": {"nr_inodes=5k", "mkdir /d; cd /d; seq 6000 | xargs touch 2>/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.smallDisk("scratch", c.disk)
			p.mkdir("wheels")
			await := func(name string) string { return "until [ -e /.wheelhouse/" + name + " ]; do usleep 50000; done\n" }
			p.task("fills", await("fill")+c.fill+"; touch /it\n", rewards, "")
			p.task("waits", "touch /up\n"+await("go")+"touch /it\n", rewards, "")
			wants := map[string]string{"fills": "disk_limit task agent", "waits": "1"}
			for i, solve := range []string{"touch /it\n", "true\n", "exit 3\n", "echo x >/tmp/y; touch /it\n", "touch /it /more\n", "touch /other\n"} {
				name := fmt.Sprint("other-", i)
				p.task(name, solve, rewards, "")
				wants[name] = map[bool]string{true: "1", false: "0"}[strings.Contains(solve, " /it")]
			}
			cmd := p.command(p.args("run", "--agent", "oracle", "-n", "8", "--retries", "3", "--disk", "1G", "--wheelhouse", "wheels", "--no-gate", "other tests have it")...)
			cmd.Args = append([]string{"bash", "-o", "pipefail", "-c", `"$@" | while read -r line; do echo "$line"; case $line in *'"task_name":"fills"'*) echo >wheels/go; esac; done`, "bash", cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/bash"
			ran := make(chan ran, 1)
			go func() { defer close(ran); ran <- p.run(cmd) }()
			p.await("a solution that waits", func() bool {
				up, err := filepath.Glob(p.path("scratch/*/*/box/overlay/upper/up"))
				return err == nil && len(up) > 0
			})
			p.write("wheels/fill", "")
			r := <-ran
			for name, want := range wants {
				p.came(r, "oracle "+name, want)
			}
			if n := r.records["oracle waits"].Tries; n < 2 {
				t.Errorf("the one that ran when the disk was full: try %d\n%s", n, r.stderr)
			}
		})
	}
}

// What does not fit into the folder for results is missing room, and nobody's
// fault: no other trial is begun, and with room the same command goes on.
func TestRun_OutFull(t *testing.T) {
	p := newPlace(t)
	out := p.smallDisk("out", "size=512k")
	for _, name := range []string{"a", "b"} {
		p.task(name, "", rewards, "")
	}
	r := p.model(ms.Start(t, turn("seq 200000\n")).Base, "-n", "1", "--no-gate", "other tests have it")
	for _, want := range []string{"fault, out_full (infra): ", "turns.jsonl: no space left on device; that cannot be written", "/result.json: no space", "hint: make room for the results"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if begun, _ := filepath.Glob(p.path("out/run/?__*")); r.code != 3 || len(r.records) != 0 || len(begun) != 1 {
		t.Errorf("exit code %d, %d records, begun are %q\n%s", r.code, len(r.records), begun, r.stderr)
	}
	if err := unix.Mount("", out, "", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	r = p.model(ms.Start(t, turn("touch /it\n"), done, done, turn("touch /it\n"), done).Base, "-n", "1", "--no-gate", "other tests have it")
	for _, name := range []string{"a", "b"} {
		p.came(r, "terminus "+name, "1")
	}
}

// An image that is removed while a run is under way is missed by the trials that
// come after; the ones before have their verdicts.
func TestRun_ImageRemoved(t *testing.T) {
	p := newPlace(t)
	var records bytes.Buffer
	for _, name := range []string{"a", "b"} {
		p.task(name, "touch /it\n", rewards, "")
		data, err := os.ReadFile(bed.Image("busybox"))
		if err != nil {
			t.Fatal(err)
		}
		p.write(name+".sif", string(data))
		if err := json.NewEncoder(&records).Encode(map[string]any{"schema": "sifbuild.image/v1", "task": p.path("tasks", name), "image": p.path(name + ".sif")}); err != nil {
			t.Fatal(err)
		}
	}
	p.task("a", "touch /it\nexec sleep 100000\n", rewards, "")
	ran := make(chan ran, 1)
	cmd := p.command("run", "-", "--agent", "oracle", "--out", "out/run", "--scratch", p.path("scratch"), "-n", "1", "--retries", "0", "--no-gate", "only results are looked at")
	cmd.Stdin = &records
	go func() { defer close(ran); ran <- p.run(cmd) }()
	p.asleep()
	if err := os.Remove(p.path("b.sif")); err != nil {
		t.Fatal(err)
	}
	for _, pid := range processes(p.path("scratch")) {
		if comm(pid) == "sleep" {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	r := <-ran
	p.came(r, "oracle a", "1")
	p.came(r, "oracle b", "image_missing infra start")
}
