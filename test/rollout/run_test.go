package rollout

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"fence/pkg/result"
	"fence/test/bed"
	"fence/test/tasks"
)

// place is where rollout is run as a person would: tasks, results, and a scratch
// folder in which nothing is to be left.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	bed.Require(t, "users", "images", "apptainer")
	p := &place{t: t, dir: bed.TempDir(t)}
	for _, name := range []string{"tasks", "scratch", "out"} {
		p.mkdir(name)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(p.path("scratch")); err != nil || len(left) > 0 {
			t.Errorf("in the scratch folder is left: %v, %v", left, err)
		}
		if said, _ := exec.Command("pgrep", "-af", p.path("scratch")).Output(); len(said) > 0 {
			t.Errorf("still there:\n%s", said)
		}
	})
	return p
}

func (p *place) path(parts ...string) string {
	return filepath.Join(append([]string{p.dir}, parts...)...)
}

// mkdir makes a folder of the person's.
func (p *place) mkdir(name string) {
	p.t.Helper()
	at := p.path(name)
	if err := os.MkdirAll(at, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		uid, gid, _ := bed.User(p.t)
		if err := os.Chown(at, uid, gid); err != nil {
			p.t.Fatal(err)
		}
	}
}

// task makes a task for an image that is given by hand.
func (p *place) task(name, solve, test, settings string) {
	p.t.Helper()
	for file, text := range map[string]string{
		"task.toml": settings, "instruction.md": asks(name) + "\n", "environment/Dockerfile": "FROM busybox:1\n", "solution/solve.sh": "#!/bin/sh\n" + solve, "tests/test.sh": "#!/bin/sh\n" + test,
	} {
		p.write(filepath.Join("tasks", name, file), text)
	}
}

// asks are words of a task's instruction that no other has.
func asks(name string) string { return "The task is " + name + "." }

// write makes a file, and its folder.
func (p *place) write(name, text string) {
	p.t.Helper()
	at := p.path(name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// rewards is a test.sh that rewards a file.
const rewards = "if [ -f /it ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n"

// command is rollout with arguments. What it would write below the home folder
// is an error.
func (p *place) command(args ...string) *exec.Cmd {
	p.t.Helper()
	cmd := bed.Command(p.t, bed.Bin(p.t, "rollout"), args...)
	cmd.Dir = p.dir
	for _, name := range []string{"fence", "probe"} {
		if at := filepath.Dir(bed.Bin(p.t, name)); at != filepath.Dir(cmd.Path) {
			p.t.Fatalf("%s is not beside %s", name, cmd.Path)
		}
	}
	cmd.Env = append(cmd.Env, "HOME=/nonexistent", "SLURM_JOB_ID=1", "SLURM_JOB_END_TIME=9999999999")
	return cmd
}

// args are those of a run of the busybox image.
func (p *place) args(verb string, more ...string) []string {
	return append([]string{verb, "tasks", "--image", bed.Image("busybox"), "--out", "out/run", "--scratch", p.path("scratch")}, more...)
}

type ran struct {
	code    int
	stderr  string
	records map[string]result.Trial // by agent and task
}

// run runs a command to its end. Who is given as its Stderr hears what it says.
func (p *place) run(cmd *exec.Cmd) ran {
	p.t.Helper()
	var out, said bytes.Buffer
	cmd.Stdout = &out
	if cmd.Stderr == nil {
		cmd.Stderr = io.Discard
	}
	cmd.Stderr = io.MultiWriter(&said, cmd.Stderr)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	r := ran{cmd.ProcessState.ExitCode(), said.String(), byAgent(out.String())}
	if strings.Contains(r.stderr, "goroutine ") {
		p.t.Fatalf("it fell over:\n%s", r.stderr)
	}
	return r
}

// byAgent are the records among lines, by agent and task.
func byAgent(lines string) map[string]result.Trial {
	all := map[string]result.Trial{}
	for line := range strings.Lines(lines) {
		if rec, err := result.Decode([]byte(line)); err == nil { // else for people: replay's
			all[rec.AgentInfo.Name+" "+filepath.Base(rec.Task)] = rec
		}
	}
	return all
}

// word is what came of a trial: a reward to four places, or the class of its
// fault.
func word(r result.Trial) string {
	if r.Fault == nil && r.Reward == nil {
		return "no record"
	}
	if r.Fault != nil {
		return r.Fault.Class
	}
	s := strconv.FormatFloat(*r.Reward, 'f', 4, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// The tasks of test/tasks come out as their table says, whatever the umask, from
// a pipe in a job of Slurm's; and of what honest solutions do nothing taints a verdict.
func TestTasks(t *testing.T) {
	p := newPlace(t)
	if err := os.CopyFS(p.path("tasks"), os.DirFS("../tasks")); err != nil {
		t.Fatal(err)
	}
	wants := tasks.Wants()
	flags := ""
	if os.Getenv("TEST_FULL") != "" {
		bed.Require(t, "wheels")
		house := bed.Command(t, bed.Bin(t, "sifbuild"), "wheelhouse", p.path("tasks"), "--out", p.path("out/wheels"), "--python", "3.13", "--grader", "--interpreter", filepath.Join(bed.Dir(), "python-3.13"))
		house.Env = append(house.Env, "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+filepath.Join(bed.Dir(), "wheels"))
		if out, err := house.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		flags = "--wheelhouse out/wheels --grader out/wheels"
	} else { // they need a Python and packages
		for _, name := range []string{"pytest", "wheels"} {
			delete(wants, name)
			flags += " --exclude " + name
		}
	}
	roots := filepath.Join(bed.Dir(), "roots")
	bed.Bin(t, "sifbuild")
	log := p.job("busybox", fmt.Sprintf(`umask 0002
		sifbuild build tasks --cache out/cache --base debian:12=%s/debian --base busybox:1=%s/busybox --require none --no-smoke --scratch scratch |
		rollout validate - --out out/run --scratch scratch -n 2 --strict-verdict %s >out/records.jsonl
		echo exit code $?`, roots, roots, flags), "--time=30", "--mem=4000")
	records, err := os.ReadFile(p.path("out/records.jsonl"))
	if err != nil || !strings.Contains(log, "exit code 1\n") {
		t.Errorf("%v; a broken grader passes with no action\n%s", err, log)
	}
	r := ran{stderr: log, records: byAgent(string(records))}
	for name, want := range wants {
		for agent, want := range map[string]string{"oracle": want.Oracle, "nop": want.Nop} {
			rec, ok := r.records[agent+" "+name]
			if want == "n/a" {
				want = "solution_missing"
			}
			if !ok {
				t.Errorf("%s of %s has no record", agent, name)
				continue
			}
			if got := word(rec); got != want {
				t.Errorf("%s of %s: %s, want %s: %+v", agent, name, got, want, rec.Fault)
			}
			if len(rec.Tainted) > 0 {
				t.Errorf("%s of %s is tainted: %v", agent, name, rec.Tainted)
			}
			if want == "solution_missing" {
				if rec.Isolation != nil {
					t.Errorf("%s of %s has had a container", agent, name)
				}
				continue
			}
			if i := rec.Isolation; i == nil || !i.Below || i.Gate != "pass" || i.Agent.Network != "loopback" {
				t.Errorf("%s of %s: isolation %+v", agent, name, i)
			}
		}
	}
	if rec := r.records["oracle hanging-solution"]; rec.Agent.Stop != "time_cap" {
		t.Errorf("the solution that hangs ended with %q", rec.Agent.Stop)
	}
	if !strings.Contains(r.stderr, "Scripted validation") || t.Failed() {
		t.Logf("%s", r.stderr)
	}
	// What is done is not done again, and the answer is the same.
	again := p.command("validate", "tasks", "--sif-cache", "out/cache", "--out", "out/run", "--scratch", "scratch", "--strict-verdict")
	again.Args = append(again.Args, strings.Fields(flags)...)
	r2 := p.run(again)
	if r2.code != 1 || len(r2.records) != len(r.records) {
		t.Errorf("again: exit code %d, %d records of %d\n%s", r2.code, len(r2.records), len(r.records), r2.stderr)
	}
	for key, rec := range r.records {
		if now := r2.records[key]; now.ID != rec.ID {
			t.Errorf("%s was run again", key)
		}
	}
}

// begun starts a run of which one trial ends and others go on, and returns when
// the first record is there.
func (p *place) begun(args ...string) (cmd *exec.Cmd, rest io.Reader) {
	p.t.Helper()
	p.slow()
	cmd = p.command(args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(line, `"task_name":"quick"`) {
		p.t.Fatalf("the first record: %q, %v", line, err)
	}
	return cmd, lines
}

// slow are a task that ends, and two that do not.
func (p *place) slow() {
	p.t.Helper()
	p.task("quick", "touch /it\n", rewards, "")
	for _, name := range []string{"slow-1", "slow-2"} {
		p.task(name, "touch /it\nexec sleep 100000\n", rewards, "")
	}
}

// hurries makes the slow tasks end: their agents' time is 1 s.
func (p *place) hurries() {
	for _, name := range []string{"slow-1", "slow-2"} {
		p.task(name, "touch /it\nexec sleep 100000\n", rewards, "[agent]\ntimeout_sec = 1\n")
	}
}

// However a run is ended, nothing of it goes on or is left, what was done stays,
// and the same again ends it.
func TestRun_Ended(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "asked": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			args := p.args("run", "--agent", "oracle", "-n", "3")
			cmd, rest := p.begun(args...)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if more, err := io.ReadAll(rest); err != nil || len(more) > 0 {
				t.Errorf("more records: %q, %v", more, err)
			}
			_ = cmd.Wait()
			log, _ := os.ReadFile(p.path("out/run/job.log"))
			if code := cmd.ProcessState.ExitCode(); sig == syscall.SIGTERM && (code != 3 || strings.Count(string(log), ": stopped: the signal SIGTERM asked for it\n") != 2) {
				t.Errorf("exit code %d\n%s", code, log)
			}
			if found, _ := filepath.Glob(p.path("out/run/slow-*/result.json")); len(found) > 0 {
				t.Errorf("trials that were ended have results: %v", found)
			}
			p.hurries()
			r := p.run(p.command(args...))
			if r.code != 0 || len(r.records) != 3 {
				t.Fatalf("again: exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
			}
			for key, rec := range r.records {
				if word(rec) != "1" || rec.Tries != 1 {
					t.Errorf("%s: %s at try %d", key, word(rec), rec.Tries)
				}
			}
		})
	}
}

// Before a job ends the run does, with nothing left of what is under way, and
// goes on elsewhere. Slurm counts in minutes, and two are the margin.
func TestRun_JobEnds(t *testing.T) {
	p := newPlace(t)
	p.slow()
	for _, name := range []string{"slow-1", "slow-2"} { // whose processes are known from other tests'
		p.task(name, "touch /it\nexec sleep 100733\n", rewards, "")
	}
	log := p.job("busybox", `
$run --agent oracle --out out/run -n 3 >out/records.jsonl
echo exit code $?, left $(squeue -h -j $SLURM_JOB_ID -o %L | cut -d: -f1) minutes
ls scratch; pgrep -af "[s]leep 100733"
`+"true\n", "--time=3")
	records, _ := os.ReadFile(p.path("out/records.jsonl"))
	if all := byAgent(string(records)); len(all) != 1 || word(all["oracle quick"]) != "1" {
		t.Errorf("records: %s", records)
	}
	if !regexp.MustCompile(`(?s)\nrollout: the job ends at .*\nexit code 3, left [12] minutes\n$`).MatchString(log) {
		t.Errorf("the job's log:\n%s", log)
	}
	if found, _ := filepath.Glob(p.path("out/run/slow-*/result.json")); len(found) > 0 {
		t.Errorf("trials that were ended have results: %v", found)
	}
	p.hurries()
	r := p.run(p.command(p.args("run", "--agent", "oracle", "-n", "3")...))
	if r.code != 0 || len(r.records) != 3 || r.records["oracle quick"].ID != byAgent(string(records))["oracle quick"].ID {
		t.Errorf("again: exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
	}
}

// Of a job that is too short for any trial it is said what would help, and how
// many there are.
func TestRun_NoTime(t *testing.T) {
	p := newPlace(t)
	p.task("a", "touch /it\n", rewards, "")
	r := p.run(p.command(p.args("run", "--agent", "oracle", "--attempts", "2", "--deadline", "1m")...))
	for _, want := range []string{"and two minutes before it nothing more is run\n", "\n  0 trials; 2 not begun\n", "\nhint: give it more time than the two minutes in which it ends: sbatch --time, or --deadline\n"} {
		if r.code != 3 || !strings.Contains(r.stderr, want) {
			t.Errorf("exit code %d, not said: %q\n%s", r.code, want, r.stderr)
		}
	}
}

// What is wrong with the node or the image is no verdict.
func TestRun_Broken(t *testing.T) {
	p := newPlace(t)
	p.task("a", "touch /it\n", rewards, "")
	p.write("broken.sif", "no image")
	cmd := p.command("run", "-", "--agent", "nop", "--out", "out/broken", "--scratch", p.path("scratch"), "--retries", "0")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"task":%q,"image":%q}`, p.path("tasks/a"), p.path("broken.sif")))
	r := p.run(cmd)
	if rec := r.records["nop a"]; r.code != 3 || word(rec) != "image_invalid" || rec.Reward != nil {
		t.Errorf("exit code %d, %s\n%s", r.code, word(rec), r.stderr)
	}
	// The control: with an image there is a verdict.
	if r := p.run(p.command(p.args("run", "--agent", "nop")...)); r.code != 0 || word(r.records["nop a"]) != "0" {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	// Another image is another run; the same one by another name is not.
	if err := os.Symlink(bed.Image("busybox"), p.path("same.sif")); err != nil {
		t.Fatal(err)
	}
	args := p.args("run", "--agent", "nop")
	for image, want := range map[string]int{p.path("same.sif"): 0, bed.Image("debian"): 2} {
		args[3] = image
		r := p.run(p.command(args...))
		if r.code != want || (want == 2) != strings.Contains(r.stderr, " holds trials of other settings: content of --image was sha256:") {
			t.Errorf("%s: exit code %d\n%s", image, r.code, r.stderr)
		}
	}
}

// A solution that needs what the fence keeps from it is told apart from one that
// is wrong, and what it needs is printed as a policy has it.
func TestValidate_Suggest(t *testing.T) {
	p := newPlace(t)
	p.task("unshares", "unshare -U true && touch /it\n", rewards, "")
	p.task("wrong", "exit 1\n", rewards, "")
	args := p.args("validate", "--suggest", "--agent-timeout-multiplier", "1")
	args[3] = bed.Image("debian")
	r := p.run(p.command(args...))
	if r.code != 1 {
		t.Errorf("exit code %d", r.code)
	}
	for _, want := range []string{
		"rollout: unshares: its solution passes with this\n    [[open]]\n    syscall = \"unshare\"\n    why = \"unshares: its solution calls it\"\n",
		"rollout: wrong: its solution fails with the network and every system call, too: it is not the fence\n",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("not said: %s\n%s", want, r.stderr)
		}
	}
	// What is printed does it.
	p.write("open.toml", "version = 1\n[[open]]\nsyscall = \"unshare\"\nwhy = \"unshares: its solution calls it\"\n")
	args = []string{"run", "tasks/unshares", "--agent", "oracle", "--image", bed.Image("debian"), "--out", "out/opened", "--scratch", p.path("scratch"), "--policy", "open.toml"}
	r = p.run(p.command(args...))
	rec := r.records["oracle unshares"]
	if r.code != 0 || word(rec) != "1" || len(rec.Isolation.Opened) != 1 {
		t.Errorf("exit code %d, %s, %+v\n%s", r.code, word(rec), rec.Isolation, r.stderr)
	}
	p.write("open.toml", "version = 1\n[[open]]\nsyscall = \"ptrace\"\nwhy = \"another\"\n")
	if r = p.run(p.command(args...)); r.code != 2 || !strings.Contains(r.stderr, "other settings: content of --policy was sha256:") {
		t.Errorf("with another policy: exit code %d\n%s", r.code, r.stderr)
	}
}

// A trial comes out the same again, or is said not to.
func TestReplay(t *testing.T) {
	p := newPlace(t)
	p.task("a", "touch /it\n", rewards, "")
	p.write("open.toml", "version = 1\n[[open]]\nsyscall = \"ptrace\"\nwhy = \"a test\"\n")
	r := p.run(p.command(p.args("run", "--agent", "oracle", "--policy", p.path("open.toml"))...))
	rec := r.records["oracle a"]
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	trial := filepath.Join("out/run", rec.TrialName)
	if r := p.run(p.command("replay", trial, "--scratch", p.path("scratch"))); r.code != 0 || strings.Contains(r.stderr, "have changed") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	p.task("a", "rm -f /it\n", rewards, "")
	if r := p.run(p.command("replay", trial, "--scratch", p.path("scratch"))); r.code != 1 || !strings.Contains(r.stderr, "tasks/a have changed since that trial: this is another task\n") || !strings.Contains(r.stderr, "it does not come out the same") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
}
