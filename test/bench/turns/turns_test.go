// Package turns measures what a model's turns in a terminal cost, beside the way
// of Harbor's: tmux in the container, and a new apptainer exec for each thing
// that it is asked. make bench prints it; it judges nothing.
package turns

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/terminus"
	"fence/pkg/trajectory"
	"fence/test/bed"
	ms "fence/test/modelserver"
)

const (
	tasks, atATime = 12, 8
	few            = 2 // turns; what one costs is the difference to a run of many
	many           = 102
	manyHarbor     = 4 // its turns take seconds on a small machine
	wait           = 100 * time.Millisecond
)

// cost is what all processes of a run took.
type cost struct {
	wall, cpu time.Duration
	memory    map[string]int64 // bytes by program while all containers were up, the median; without what is in them
	late      []float64        // milliseconds by which waits of this program, which does nothing else, were too long meanwhile
}

// BenchmarkTurns prints a table.
func BenchmarkTurns(b *testing.B) {
	bed.Require(b, "users", "images", "apptainer")
	// Orphans (tmux, FUSE) become ours, and what they took counts.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		b.Fatal(err)
	}
	dir := bed.TempDir(b)
	for i := range tasks {
		for name, text := range map[string]string{"task.toml": "", "instruction.md": "Do it.\n", "environment/Dockerfile": "FROM debian:12\n", "tests/test.sh": "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n"} {
			at := filepath.Join(dir, "tasks", fmt.Sprint("task", i), name)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	var over, floor []float64
	rollout := func(turns int) cost {
		s := ms.Start(b, func(w http.ResponseWriter, r ms.Request) {
			if n := len(r.Messages) / 2; n < turns {
				ms.Say(ms.Turn("a", false, "true\n"))(w, r)
				return
			}
			ms.Say(ms.Turn("a", true))(w, r)
		})
		out := filepath.Join(dir, fmt.Sprint("out", turns))
		for _, name := range []string{out, out + "-scratch"} {
			person(b, name)
		}
		c := measured(b, bed.Command(b, bed.Bin(b, "rollout"), "run", filepath.Join(dir, "tasks"), "--image", bed.Image("debian"), "--agent", "terminus", "--api-base", s.Base, "--model", "m",
			"--out", out, "--scratch", out+"-scratch", "-n", strconv.Itoa(atATime), "--max-turns", strconv.Itoa(turns+2), "--deadline", "none", "--no-gate", "a measurement"))
		over, floor = append(over, overheads(b, out)...), append(floor, c.late...)
		return c
	}
	harbor := func(turns int) cost {
		cmd := bed.Command(b, "bash", "-c", harborsWay, "bash", filepath.Join(bed.Dir(), "bin", "apptainer"), bed.Image("debian"), strconv.Itoa(turns), strconv.Itoa(atATime), strconv.Itoa(tasks), fmt.Sprintf("bench%d-%d", os.Getpid(), turns))
		cmd.Env = append(cmd.Env, "HOME="+dir)
		return measured(b, cmd)
	}
	person(b, dir)
	type row struct {
		name      string
		turns     int
		few, many cost
	}
	rows := []row{{"tmux outside, under fence", many, rollout(few), rollout(many)}, {"tmux inside, an exec a call", manyHarbor, harbor(few), harbor(manyHarbor)}}
	slices.Sort(over)
	slices.Sort(floor)
	fmt.Printf("\nA model's turns: %d tasks, %d at once, %v each (CPU of all processes; memory outside of containers)\n", tasks, atATime, wait)
	fmt.Printf("%-28s %7s %9s %9s %9s %11s %12s\n", "", "turns", "wall, s", "CPU, s", "a turn,ms", "CPU, ms", "a trial, MB")
	var each []float64
	for _, r := range rows {
		turn := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(tasks*(r.turns-few)) }
		each = append(each, turn(r.many.cpu-r.few.cpu))
		fmt.Printf("%-28s %7d %9.1f %9.1f %9.1f %11.2f %12.1f\n", r.name, r.turns, r.many.wall.Seconds(), r.many.cpu.Seconds(), turn(r.many.wall-r.few.wall)*atATime, each[len(each)-1], float64(sum(r.many.memory))/1e6/atATime)
	}
	for _, name := range slices.Sorted(maps.Keys(rows[0].many.memory)) {
		fmt.Printf("%-28s %49s %12.1f\n", "  "+name, "", float64(rows[0].many.memory[name])/1e6/atATime)
	}
	fmt.Printf("CPU of a turn: %.1fx less. Beyond the wait that was asked for, a turn took %.1f ms (median), %.1f (p90), %.1f (most);\na wait of a program that did nothing else was too long by %.1f, %.1f, %.1f\n",
		each[1]/each[0], at(over, .5), at(over, .9), at(over, 1), at(floor, .5), at(floor, .9), at(floor, 1))
}

// harborsWay is one trial's, as often and as many at once as told: has-session,
// the keys, the wait, the whole buffer and the screen.
const harborsWay = `set -eu
export a=$1 image=$2 turns=$3 name=$6
one() {
	n=$name-$1
	$a -q instance start -C --writable-tmpfs $image $n >/dev/null 2>&1
	x() { $a -q exec instance://$n "$@"; }
	x tmux new-session -x 160 -y 40 -d -s t 'bash --login'
	for i in $(seq $turns); do
		x tmux has-session -t t
		x tmux send-keys -t t -- true Enter
		sleep 0.1
		x tmux capture-pane -p -S - -t t >/dev/null
		x tmux capture-pane -p -t t >/dev/null
	done
	$a -q instance stop $n >/dev/null 2>&1
}
export -f one
seq $5 | xargs -P $4 -I{} bash -c 'set -eu; one {}'
`

// person makes a folder the test bed's user's.
func person(b *testing.B, dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	if os.Geteuid() == 0 {
		uid, gid, _ := bed.User(b)
		if err := os.Chown(dir, uid, gid); err != nil {
			b.Fatal(err)
		}
	}
}

// measured runs a command and waits for all that it has started.
func measured(b *testing.B, cmd *exec.Cmd) cost {
	var said strings.Builder
	cmd.Stderr = &said
	before, began := children(b), time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	stop, memory, late := make(chan struct{}), make(chan map[string]int64), make(chan []float64)
	go func() {
		var all []float64
		for {
			asked := time.Now()
			select {
			case <-time.After(wait):
				all = append(all, float64((time.Since(asked)-wait).Microseconds())/1000)
			case <-stop:
				late <- all
				return
			}
		}
	}()
	go func() {
		var seen []map[string]int64
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-tick.C:
				now := map[string]int64{}
				if outside(os.Getpid(), now) == atATime {
					seen = append(seen, now)
				}
			case <-stop:
				slices.SortFunc(seen, func(a, b map[string]int64) int { return cmp.Compare(sum(a), sum(b)) })
				memory <- append(seen, nil)[len(seen)/2]
				return
			}
		}
	}()
	err := cmd.Wait()
	c := cost{wall: time.Since(began)}
	close(stop)
	c.memory, c.late = <-memory, <-late
	if err != nil {
		b.Fatalf("%v\n%s", err, said.String())
	}
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && err != unix.EINTR {
			break
		}
	}
	c.cpu = children(b) - before
	return c
}

func children(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// outside adds the memory (PSS) of the processes below one that are in its own
// PID namespace, by their programs, and says how many containers are below it.
func outside(pid int, to map[string]int64) (containers int) {
	own, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for _, f := range strings.Fields(string(data)) {
			child, _ := strconv.Atoi(f)
			if ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", child)); ns != own {
				containers++
				continue
			}
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
			smaps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", child))
			if _, rest, ok := strings.Cut(string(smaps), "\nPss:"); ok {
				var kb int64
				fmt.Sscan(rest, &kb)
				to[strings.TrimSpace(string(name))] += kb << 10
			}
			containers += outside(child, to)
		}
	}
	return containers
}

func sum(m map[string]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// overheads are how many milliseconds turns took beyond the wait.
func overheads(b *testing.B, out string) (all []float64) {
	files, _ := filepath.Glob(filepath.Join(out, "*", "agent", terminus.TurnsFile))
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var t trajectory.Turn
			if err := json.Unmarshal([]byte(line), &t); err != nil {
				b.Fatal(err)
			}
			if len(t.Commands) == 1 {
				all = append(all, (t.TerminalSec-wait.Seconds())*1000)
			}
		}
	}
	return all
}

func at(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1))] }
