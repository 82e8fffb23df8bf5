package rollout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/bed"
)

// asleep waits for the solution that has begun to sleep.
func (p *place) asleep() {
	p.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		for _, pid := range processes(p.path("scratch")) {
			if comm(pid) == "sleep" {
				return
			}
		}
		if time.Now().After(end) {
			p.t.Fatal("no solution sleeps")
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
			go func() { ran <- p.run(p.command(p.args("run", "--agent", "oracle", "--retries", "0")...)) }()
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

// A disk that is full when a command writes makes no task failed.
func TestRun_DiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: only root can mount a small disk")
	}
	p := newPlace(t)
	uid, gid, _ := bed.User(t)
	if err := unix.Mount("test-rollout", p.path("scratch"), "tmpfs", 0, fmt.Sprintf("size=32m,mode=755,uid=%d,gid=%d", uid, gid)); err != nil {
		bed.Missing(t, "the right to mount a tmpfs (%v)", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.path("scratch"), unix.MNT_DETACH) })
	p.task("small", "dd if=/dev/zero of=/big bs=1M count=10 && touch /it\n", rewards, "")
	p.task("large", "dd if=/dev/zero of=/big bs=1M count=100 && touch /it\n", rewards, "")
	r := p.run(p.command(p.args("run", "--agent", "oracle", "-n", "1", "--retries", "0")...))
	p.came(r, "oracle small", "1")
	p.came(r, "oracle large", "scratch_full infra agent")
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
	go func() { ran <- p.run(cmd) }()
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
