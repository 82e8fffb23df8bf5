// Command rollout, make bench-rollout, says what a trial costs beyond its task's own
// commands: time, with where it goes, beside the same steps as commands of
// Apptainer's, and memory. It runs as the test bed's ordinary user, and judges nothing.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
	"fence/test/bed"
)

var (
	rounds = flag.Int("rounds", 15, "trials of each contestant, in turn")
	trials = flag.Int("trials", 8, "trials at a time whose memory is looked at")
	bin    = flag.String("bin", "bin", "folder of the built programs")
	image  = flag.String("image", "debian", "one of the test bed's images")
)

// The task's own commands do next to nothing.
const (
	solve = "touch /it"
	test  = "if [ -f /it ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt"
)

type bench struct {
	work, apptainer, image string
	who                    syscall.Credential
}

func main() {
	defer func() { // after what is to be removed
		if e := recover(); e != nil {
			fmt.Fprintln(os.Stderr, "bench-rollout:", e)
			os.Exit(1)
		}
	}()
	flag.Parse()
	if os.Geteuid() != 0 {
		must(errors.New("root starts it, and the test bed's user runs trials"))
	}
	u, err := user.Lookup("fencer")
	must(err)
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	work, err := os.MkdirTemp("", "bench")
	must(err)
	defer os.RemoveAll(work)
	must(errors.Join(os.Chmod(work, 0o755), os.CopyFS(filepath.Join(work, "bin"), os.DirFS(*bin))))
	for _, name := range []string{"fence", "probe", "rollout"} {
		must(os.Chmod(filepath.Join(work, "bin", name), 0o755))
	}
	for _, name := range []string{"out", "scratch"} {
		must(errors.Join(os.Mkdir(filepath.Join(work, name), 0o755), os.Chown(filepath.Join(work, name), uid, gid)))
	}
	b := &bench{work, filepath.Join(bed.Dir(), "bin", "apptainer"), bed.Image(*image), syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{}}}
	b.task("quick", solve)
	b.task("waits", "exec sleep 86400.125")
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("Load when it begins: %s\n", load)
	b.time()
	b.memory()
}

func (b *bench) task(name, solve string) {
	for file, text := range map[string]string{
		"task.toml": "", "instruction.md": "Do it.\n", "environment/Dockerfile": "FROM x\n", "solution/solve.sh": "#!/bin/sh\n" + solve + "\n", "tests/test.sh": "#!/bin/sh\n" + test + "\n",
	} {
		at := filepath.Join(b.work, "tasks", name, file)
		must(errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o755)))
	}
}

// command is one of the ordinary user's.
func (b *bench) command(argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stderr = b.work, &bytes.Buffer{}
	cmd.Env = []string{"PATH=" + filepath.Dir(b.apptainer) + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + b.work + "/out", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &b.who}
	return cmd
}

// run is how many seconds a command takes that must end well.
func (b *bench) run(argv ...string) float64 {
	cmd := b.command(argv...)
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		must(fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, cmd.Stderr))
	}
	return time.Since(begin).Seconds()
}

func (b *bench) rollout(task string, more ...string) *exec.Cmd {
	out, err := os.MkdirTemp(filepath.Join(b.work, "out"), "")
	must(errors.Join(err, os.Chown(out, int(b.who.Uid), int(b.who.Gid))))
	return b.command(append([]string{filepath.Join(b.work, "bin/rollout"), "run", "tasks/" + task, "--agent", "oracle", "--image", b.image, "--out", out, "--scratch", "scratch"}, more...)...)
}

// figures are seconds by what they were spent on.
type figures map[string][]float64

func (f figures) add(what string, seconds float64) { f[what] = append(f[what], seconds) }

// time compares a trial with the steps that a bridge makes of one: a container
// kept up and a command of Apptainer's for each step, or a container for each.
// Files come and go by folders that are bound, so that costs the bridge nothing.
func (b *bench) time() {
	f := figures{}
	for i := range *rounds {
		cmd := b.rollout("quick", "--attempts", "2", "-n", "1")
		var out bytes.Buffer
		cmd.Stdout = &out
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			must(fmt.Errorf("rollout: %w\n%s", err, cmd.Stderr))
		}
		whole := time.Since(begin).Seconds()
		for n, line := range slices.Collect(strings.Lines(out.String())) {
			r, err := result.Decode([]byte(line))
			must(err)
			if r.Reward == nil || *r.Reward != 1 {
				must(fmt.Errorf("a trial: %+v", r.Fault))
			}
			whole -= r.FinishedAt.Sub(r.StartedAt).Seconds()
			if n == 0 { // it may have had to read the image
				continue
			}
			f.trial(r)
		}
		f.add("a run's own: gate, its folders", whole)
		f.add("apptainer instance, exec of each step", b.instance(i))
		f.add("apptainer exec of each step", b.each(i))
	}
	fmt.Printf("A trial whose commands do nothing, in the image %s (%d in turn; milliseconds)\n", *image, *rounds)
	fmt.Printf("%-42s %8s %8s %8s %8s\n", "", "min", "median", "p90", "ratio")
	const first = "rollout, a trial"
	for _, name := range slices.SortedFunc(maps.Keys(f), func(a, b string) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b))
	}) {
		var ratios []float64
		for i := range f[name] {
			ratios = append(ratios, f[name][i]/f[first][i])
		}
		fmt.Printf("%-42s %8.0f %8.0f %8.0f %8.2f\n", name, 1000*quantile(f[name], 0), 1000*quantile(f[name], .5), 1000*quantile(f[name], .9), quantile(ratios, .5))
	}
}

// place is where a line is printed.
func place(name string) int {
	return slices.IndexFunc([]string{"rollout, a trial", "  start", "  agent: ", "  verify: ", "  files out", "  end", "a run", "apptainer instance", "apptainer exec"}, func(begin string) bool {
		return strings.HasPrefix(name, begin)
	})
}

// trial adds where the time of a trial went.
func (f figures) trial(r result.Trial) {
	between := func(a, b time.Time) float64 { return b.Sub(a).Seconds() }
	start, agent, verifier := r.EnvironmentSetup, r.AgentExecution, r.VerifierTiming
	f.add("rollout, a trial", between(r.StartedAt, r.FinishedAt))
	f.add("  start: container, session, folders", between(r.StartedAt, *start.FinishedAt))
	f.add("  agent: solution in, its command", between(agent.StartedAt, *agent.FinishedAt))
	f.add("  verify: tests in, their command, verdict", between(verifier.StartedAt, *verifier.FinishedAt))
	f.add("  files out: logs and artifacts", between(*start.FinishedAt, agent.StartedAt)+between(*agent.FinishedAt, verifier.StartedAt))
	f.add("  end: of the container, its files", between(*verifier.FinishedAt, r.FinishedAt))
}

// steps are the commands that the bridge's client has run in a container.
var steps = []string{"mkdir -p /app /logs/agent /logs/verifier", "chmod +x /solution/solve.sh", "/solution/solve.sh", "chmod +x /tests/test.sh", "/tests/test.sh", "cat /logs/verifier/reward.txt"}

// container are the arguments of a writable one with the task's files.
func (b *bench) container(i int, name string) (overlay string, args []string) {
	overlay, own := fmt.Sprintf("%s/out/%s-%d", b.work, name, i), fmt.Sprintf("%s/out/%s-%d-task", b.work, name, i)
	b.run("mkdir", overlay)
	b.run("cp", "-r", b.work+"/tasks/quick", own)
	return overlay, []string{"--overlay", overlay, "--bind", own + "/solution:/solution", "--bind", own + "/tests:/tests", "--cleanenv", "--no-home", "--fakeroot"}
}

func (b *bench) instance(i int) (seconds float64) {
	overlay, args := b.container(i, "instance")
	name := fmt.Sprintf("bench%d-%d", os.Getpid(), i)
	seconds += b.run(slices.Concat([]string{b.apptainer, "-q", "instance", "start"}, args, []string{b.image, name})...)
	defer func() {
		seconds += b.run(b.apptainer, "-q", "instance", "stop", name) + b.run("rm", "-rf", overlay)
	}()
	for _, step := range steps {
		seconds += b.run(b.apptainer, "-q", "exec", "instance://"+name, "/bin/sh", "-c", step)
	}
	return seconds
}

func (b *bench) each(i int) (seconds float64) {
	overlay, args := b.container(i, "exec")
	for _, step := range steps {
		seconds += b.run(slices.Concat([]string{b.apptainer, "-q", "exec"}, args, []string{b.image, "/bin/sh", "-c", step})...)
	}
	return seconds + b.run("rm", "-rf", overlay)
}

// memory is what trials take that all wait in the agent's phase: Pss by program,
// see proc_pid_smaps(5), for each trial.
func (b *bench) memory() {
	cmd := b.rollout("waits", "--attempts", strconv.Itoa(*trials), "-n", strconv.Itoa(*trials))
	must(cmd.Start())
	defer func() {
		must(cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // it says that it was stopped
	}()
	self := cmd.Process.Pid
	for {
		waiting := 0
		all := below(self)
		for _, p := range all {
			if p.name == "sleep" {
				waiting++
			}
		}
		if waiting == *trials {
			break
		}
		if p, err := os.FindProcess(self); err != nil || p.Signal(syscall.Signal(0)) != nil {
			must(fmt.Errorf("rollout has ended\n%s", cmd.Stderr))
		}
		time.Sleep(100 * time.Millisecond)
	}
	outside, inside := figures{}, figures{}
	ours, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", self))
	must(err)
	for _, p := range append(below(self), process{self, "rollout"}) {
		is, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.pid))
		must(err)
		to := inside
		if is == ours {
			to = outside
		}
		to.add(p.name, pss(p.pid))
	}
	fmt.Printf("\nMemory of %d trials that wait (Pss, MB for each trial; processes)\n", *trials)
	for _, t := range []struct {
		name string
		f    figures
	}{{"outside the container", outside}, {"inside", inside}} {
		sum, lines := 0.0, ""
		for _, name := range slices.SortedFunc(maps.Keys(t.f), func(a, b string) int { return cmp.Compare(total(t.f[b]), total(t.f[a])) }) {
			each := total(t.f[name]) / float64(*trials)
			sum += each
			lines += fmt.Sprintf("  %-26s %8.1f %8d\n", name, each, len(t.f[name]))
		}
		fmt.Printf("%-28s %8.1f\n%s", t.name, sum, lines)
	}
}

type process struct {
	pid  int
	name string
}

// below are the processes below one.
func below(pid int) (all []process) {
	parents := map[int]int{}
	names := map[int]string{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		data, err := os.ReadFile(file)
		at := bytes.LastIndexByte(data, ')') // proc_pid_stat(5)
		if err != nil || at < 0 {
			continue
		}
		p, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parents[p], _ = strconv.Atoi(strings.Fields(string(data[at+1:]))[1])
		names[p] = string(data[bytes.IndexByte(data, '(')+1 : at])
	}
	for p := range parents {
		for up := parents[p]; up > 1; up = parents[up] {
			if up == pid {
				all = append(all, process{p, names[p]})
				break
			}
		}
	}
	return all
}

// pss is the memory of a process in MB.
func pss(pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, unix.ESRCH) {
		return 0 // it has none, or has ended
	}
	must(err)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			must(err)
			return n * 1024 / 1e6
		}
	}
	return 0
}

func total(v []float64) (sum float64) {
	for _, x := range v {
		sum += x
	}
	return sum
}

func quantile(v []float64, q float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
