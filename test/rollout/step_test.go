package rollout

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fence/pkg/result"
	"fence/test/bed"
)

// job has a script run as a job of Slurm's with rollout on its PATH, and the
// flags of a run of an image in $run; it returns what the job's log says. flags
// are sbatch's.
func (p *place) job(image, script string, flags ...string) (log string) {
	p.t.Helper()
	bed.Require(p.t, "slurm")
	p.command() // all programs are beside each other
	p.write("job.sh", `#!/bin/bash
#SBATCH --output=out/log --time=5 --cpus-per-task=2
PATH=`+strings.TrimSuffix(bed.Bin(p.t, "rollout"), "/rollout")+`:$PATH
export HOME=/nonexistent PS4='+ '
run="rollout run tasks --image `+bed.Image(image)+` --scratch $PWD/scratch"
`+script)
	cmd := bed.Command(p.t, "sbatch", slices.Concat([]string{"--wait"}, flags, []string{"job.sh"})...)
	cmd.Dir = p.dir
	said, err := cmd.CombinedOutput()
	text, _ := os.ReadFile(p.path("out/log"))
	if err != nil {
		p.t.Fatalf("%v: %s\n%s", err, said, text)
	}
	return string(text)
}

// trials are the records in a file, by task.
func (p *place) trials(name string) map[string]result.Trial {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[string]result.Trial{}
	for line := range strings.Lines(string(data)) {
		rec, err := result.Decode([]byte(line))
		if err != nil {
			p.t.Fatalf("%v: %s", err, line)
		}
		all[rec.TaskName] = rec
	}
	return all
}

// Trials in steps of their own are as those without: what they come to, what
// they see, and how they are isolated.
func TestStep_Same(t *testing.T) {
	p := newPlace(t)
	const see = "env; id; pwd; umask; tr '\\0' ' ' </proc/1/environ; ls -ld /proc/self/fd/*; cat /proc/mounts /proc/self/oom_score_adj; ls -A / /tmp /run /var/run\n"
	p.task("passes", see+"echo >/it\n", see+rewards, "")
	p.task("fails", "exit 3\n", rewards, "")
	p.task("breaks", "true\n", "true\n", "")
	log := p.job("busybox", `
export SLURM_CPU_BIND=mask_cpu:0x0 SLURM_MEM_PER_CPU=1 SLURM_TRES_PER_TASK=gres:gpu:9 SRUN_CPUS_PER_TASK=99 SLURM_CONSTRAINT=no-such SECRET=canary-0
$run --agent oracle --out out/here >out/here.jsonl
echo $?
$run --agent oracle --out out/step --trial-step --memory 300M >out/step.jsonl
echo $?
squeue -h -s -j $SLURM_JOB_ID
`)
	here, step := p.trials("out/here.jsonl"), p.trials("out/step.jsonl")
	for task, want := range map[string]string{"passes": "1", "fails": "0", "breaks": "reward_missing"} {
		a, b := here[task], step[task]
		if word(a) != want || word(b) != want {
			t.Errorf("%s: %s, and %s in a step; want %s", task, word(a), word(b), want)
		}
		if a.Isolation == nil || b.Isolation == nil {
			t.Fatalf("%s has no isolation\n%s", task, log)
		}
		if a.Isolation.Limits != "watchdog" || b.Isolation.Limits != "step" {
			t.Errorf("%s: limits %q, and %q in a step", task, a.Isolation.Limits, b.Isolation.Limits)
		}
		a.Isolation.Limits = b.Isolation.Limits
		if x, y := asJSON(a.Isolation), asJSON(b.Isolation); x != y {
			t.Errorf("%s: isolation\n%s\n%s", task, x, y)
		}
		if task != "passes" {
			continue
		}
		for _, name := range []string{"agent/oracle.txt", "verifier/test-stdout.txt"} {
			x, y := p.seen("out/here/"+a.TrialName+"/"+name), p.seen("out/step/"+b.TrialName+"/"+name)
			if !slices.Equal(x, y) || !slices.Contains(x, "PWD=/\n") {
				more := func(a, b []string) []string {
					return slices.DeleteFunc(slices.Clone(a), func(l string) bool { return slices.Contains(b, l) })
				}
				t.Errorf("%s: it sees %q; only in a step %q, only without one %q", name, x, more(y, x), more(x, y))
			}
			if y := strings.Join(y, ""); strings.Contains(y, "SLURM") || strings.Contains(y, "canary") || strings.Contains(y, "munge") {
				t.Errorf("%s: what is the job's is seen\n%s", name, y)
			}
		}
	}
	if strings.Contains(log, ".0") && !strings.Contains(log, ".batch") {
		t.Errorf("steps are left\n%s", log)
	}
}

// seen are the lines that a trial printed, sorted, without what is different each
// time.
func (p *place) seen(name string) []string {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	text := regexp.MustCompile(`pipe:\[\d+\]|\w{3} +\d+ \d\d:\d\d|`+regexp.QuoteMeta(p.path("scratch"))+`[^ ,]*|\b\d+\b`).ReplaceAllString(string(data), "_")
	return slices.Sorted(strings.Lines(text))
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Slurm ends the step that takes more memory than the trial may, and no other.
// What it counts is told from what rollout does: memory that processes share.
func TestStep_Memory(t *testing.T) {
	p := newPlace(t)
	p.task("shares", `exec python3 -c 'if True:
	import os, time
	x = bytearray(60 << 20)
	for i in range(8):
		if os.fork() == 0: time.sleep(86400)
	time.sleep(86400)'
`, rewards, "")
	p.task("takes", "exec python3 -c 'import time; x = bytearray(400 << 20); time.sleep(86400)'\n", rewards, "")
	p.task("waits", "until [ -f /.wheelhouse/go ]; do sleep 0.1; done; echo >/it\n", rewards, "")
	p.mkdir("wheels")
	log := p.job("debian", `
$run --agent oracle --out out/run --trial-step --memory 300M --retries 0 --wheelhouse wheels --no-gate 'another test has it' |
	while read -r line; do echo "$line"; [ $((++n)) != 2 ] || >wheels/go; done >out/run.jsonl
! rollout run tasks/waits --image `+bed.Image("debian")+` --scratch $PWD/scratch --agent nop --out out/more --trial-step --memory 90G --retries 0 --no-gate x >out/more.jsonl
`)
	all := p.trials("out/run.jsonl")
	for task, want := range map[string]string{"shares": "memory_limit agent task", "takes": "memory_limit agent task", "waits": "1"} {
		got := word(all[task])
		if f := all[task].Fault; f != nil {
			got += " " + f.Phase + " " + f.Cause
		}
		if got != want {
			t.Errorf("%s: %s, want %s: %+v\n%s", task, got, want, all[task].Fault, log)
		}
	}
	if f := all["shares"].Fault; f == nil || !strings.HasPrefix(f.Message, "Slurm ended the step") {
		t.Errorf("not by Slurm: %+v", f)
	}
	if f := p.trials("out/more.jsonl")["waits"].Fault; f == nil || f.Class != "start_failed" || !strings.Contains(f.Hint, "sbatch --mem") {
		t.Errorf("more than the job has: %+v", f)
	}
}

// Of a rollout that is killed, no step and no process is left.
func TestStep_Killed(t *testing.T) {
	p := newPlace(t)
	p.task("stays", `setsid sh -c 'trap "" TERM HUP; sleep 86400.75; sleep 86400.75' >/dev/null 2>&1 & sleep 86400.75`, rewards, "")
	log := p.job("busybox", `
$run --agent oracle --out out/run --trial-step --no-gate 'another test has it' &
until [ "$(pgrep -cf "^sleep 86400.75")" = 2 ]; do sleep 0.1; done
echo before $(squeue -h -s -j $SLURM_JOB_ID -o %i)
kill -KILL $!
while squeue -h -s -j $SLURM_JOB_ID -o %i | grep -v batch >/dev/null; do sleep 0.1; done
echo after $(squeue -h -s -j $SLURM_JOB_ID -o %i) $(pgrep -af "^sleep 86400.75|$PWD/scratch")
$run --agent nop --out out/next --no-gate x >/dev/null # which removes what the other left
`)
	if !regexp.MustCompile(`before (\d+\.0 \d+\.batch|\d+\.batch \d+\.0)\n`).MatchString(log) {
		t.Errorf("the control: no step\n%s", log)
	}
	if !regexp.MustCompile(`after \d+\.batch\n`).MatchString(log) {
		t.Errorf("something is left\n%s", log)
	}
}

// Outside a job, or not on its node, the flag is refused, and says what to do.
func TestStep_NoJob(t *testing.T) {
	p := newPlace(t)
	p.task("any", "true\n", rewards, "")
	for env, want := range map[string]string{"SLURM_JOB_ID=": "no job of Slurm's", "SLURM_JOB_ID=7": "not on a node of the Slurm job 7"} {
		cmd := p.command(p.args("run", "--agent", "nop", "--trial-step")...)
		cmd.Env = append(cmd.Env, env)
		r := p.run(cmd)
		if r.code != 2 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "hint: ") {
			t.Errorf("%s: exit code %d\n%s", env, r.code, r.stderr)
		}
	}
}
