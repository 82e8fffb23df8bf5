package rollout

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
	"fence/test/moments"
)

// growth is how much more memory rollout may have after 9 times as many trials.
// What it keeps of each (its record) is some kilobytes.
const growth = 1.3

// Rollout does not grow with the number of trials that it has run. It is looked
// at twice when it can do nothing: nobody reads its records, and each of its
// trials has ended and waits to tell so.
func TestRun_Endures(t *testing.T) {
	const atATime = 8
	trials, first := 30, 10
	if full() {
		trials, first = 200, 20
	}
	p := newPlace(t)
	p.task("a", "", rewards, "")
	// A record is longer than what lies between two processes.
	const page = 4096
	cmd := p.command(p.args("run", "--agent", "nop", "--attempts", strconv.Itoa(trials), "-n", strconv.Itoa(atATime), "--open", "/etc/hostname:"+strings.Repeat("why ", page/4+25))...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, page); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = w, &said
	happened := make(chan struct{}, 1)
	stop := moments.Watch(t, func(int) {
		select {
		case happened <- struct{}{}:
		default:
		}
	}, p.path("out"))
	defer stop()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	records := map[string]result.Trial{}
	lines := bufio.NewReaderSize(r, 16) // which hardly reads ahead
	read := func(n int) {
		t.Helper()
		for len(records) < n {
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				t.Fatalf("only %d of %d records: %v\n%s", len(records), trials, <-ended, &said)
			}
			rec, derr := result.Decode([]byte(line))
			if err != nil || derr != nil || len(line) < page+16 {
				t.Fatalf("%v, %v: %q", err, derr, line)
			}
			if _, ok := records[rec.TrialName]; ok {
				t.Errorf("two records of %s", rec.TrialName)
			}
			records[rec.TrialName] = rec
		}
	}
	look := func(n int) usage {
		t.Helper()
		read(n)
		for {
			results, _ := filepath.Glob(p.path("out/run/*/result.json"))
			if len(results) == n+atATime {
				return usageOf(t, cmd.Process.Pid, p.path("out/run"))
			}
			select {
			case <-happened:
			case err := <-ended:
				t.Fatalf("%v\n%s", err, &said)
			}
		}
	}
	then, now := look(first), look(trials-first)
	if !slices.Equal(then.open, now.open) || float64(now.memory) > growth*float64(then.memory) {
		t.Errorf("after %d trials: %+v\nafter %d: %+v", first, then, trials-first, now)
	}
	t.Logf("after %d trials %d kB, %d descriptors, %d threads; after %d %d kB, %d, %d", first, then.memory, len(then.open), then.threads, trials-first, now.memory, len(now.open), now.threads)
	read(trials)
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, &said)
	}
	for name, rec := range records {
		if word(rec) != "0" || rec.Tries != 1 {
			t.Errorf("%s: %s at try %d: %+v", name, word(rec), rec.Tries, rec.Fault)
		}
	}
}

// usage is what a process has.
type usage struct {
	memory, threads int      // VmRSS in kB; of proc_pid_status(5)
	open            []string // what its descriptors are, as far as it stays the same
}

// usageOf looks at a rollout. Results are being brought to the disk of its
// folder out: what lies there itself is not looked at, but for the log.
func usageOf(t *testing.T, pid int, out string) (u usage) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), " kB"), ":")
		switch n, _ := strconv.Atoi(strings.TrimSpace(value)); name {
		case "VmRSS":
			u.memory = n
		case "Threads":
			u.threads = n
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil || u.memory == 0 {
		t.Fatal(err, u)
	}
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(dir, fd.Name()))
		kind, _, _ := strings.Cut(to, "[") // without the number of a pipe
		switch {
		case err != nil, to == out, filepath.Dir(to) == out && kind != out+"/"+result.JobLog, filepath.Dir(to) == out+"/.rollout/locks":
		default:
			u.open = append(u.open, kind)
		}
	}
	slices.Sort(u.open)
	return u
}
