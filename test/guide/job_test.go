package guide

import (
	"slices"
	"strings"
	"testing"

	"fence/pkg/status"
	"fence/test/bed"
)

// inFence is what a task's script may do with its standard streams. The log
// lies in a folder that is hidden.
const inFence = `
echo out 1
echo err 1 >&2
echo err 2 >>/dev/stderr && echo err 3 >>/proc/self/fd/2 && echo out 2 >>/dev/stdout || echo REFUSED >&2
python3 -c 'open("/dev/stdout", "a").write("out 3\n")'
cat /dev/stdin
if (cat "$LOG" || ls "$(dirname "$LOG")" || echo x >>"$LOG") >/dev/null 2>&1; then echo "THE LOG IS REACHED"; fi
test -e "$LOG" && echo "THE LOG IS SEEN"
exit 7
`

// In a batch job whose log lies on hidden storage, the log can be written
// through the standard streams, by every name that they have, and in no other
// way.
func TestBatchLogOnHiddenStorage(t *testing.T) {
	bed.Require(t, "slurm")
	for _, tc := range []struct{ name, before, run string }{
		{"site's mounts, masked", "", `apptainer exec ` + bind + ` --env LOG=$PWD/out.log img.sif /.fence/fence --env LOG --why "a test"`},
		{"fence env", `eval "$(fence env)"`, `apptainer exec --env LOG=$PWD/out.log img.sif /.fence/fence --env LOG --why "a test"`},
		{"bare form", `eval "$(fence env)"`, `apptainer exec --env LOG=$PWD/out.log img.sif /.fence/fence --form bare --env LOG --why "a test"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // most of it is sbatch asking now and then whether the job has ended
			p := newPlace(t)
			p.write("in.txt", "in 1\n", 0o644)
			p.write("task.sh", inFence, 0o644)
			p.write("job.sh", `#!/bin/bash
#SBATCH --output=out.log --error=err.log
`+tc.before+`
task=$(cat task.sh)
`+tc.run+` -- bash -c "$task" <in.txt
code=$?
# one file for both, and emptied by the command
`+tc.run+` -- sh -c 'echo x >/dev/stderr && echo y >/dev/stdout' >both.log 2>&1 || echo "REFUSED" >>both.log
exit $code
`, 0o755)
			r := p.run(p.here(bed.Command(t, "sbatch", "--wait", "job.sh")))
			out, err := p.read("out.log"), quiet(p.read("err.log"))
			if p.ends(r, 7); out != "out 1\nout 2\nout 3\nin 1\n" {
				t.Errorf("the log of the output:\n%s", out)
			}
			if err != "err 1\nerr 2\nerr 3\n" {
				t.Errorf("the log of the errors:\n%s", err)
			}
			if both := p.read("both.log"); both != "y\n" {
				t.Errorf("'>/dev/stderr' and '>/dev/stdout' left %q: each empties the log, as without a fence", both)
			}
		})
	}
	t.Run("control", func(t *testing.T) {
		p := newPlace(t)
		p.write("in.txt", "in 1\n", 0o644)
		p.write("out.log", "the log\n", 0o644)
		p.write("task.sh", inFence, 0o644)
		r := p.sh(`apptainer exec --env LOG=$PWD/out.log img.sif bash -c "$(cat task.sh)" <in.txt | cat`)
		if !strings.Contains(r.stdout, "THE LOG IS REACHED\nTHE LOG IS SEEN\n") {
			t.Errorf("%s%s", r.stdout, r.stderr)
		}
	})
}

// The image's own variables pass, the job's credentials do not, and are named.
func TestEnvironment(t *testing.T) {
	p := newPlace(t)
	p.image("dockerenv")
	job := []string{
		"HF_TOKEN=canary-0123456789", "PIP_INDEX_URL=https://someone:canary-hunter2@pypi.example/simple",
		"WANDB_API_KEY=canary-abcdef", "SSH_AUTH_SOCK=/tmp/canary/agent.1", "APPTAINERENV_MYTOKEN=canary-through-apptainer",
		"LC_CANARY=https://someone:canary-in-a-kept-name@host/", "OF_THE_JOB=plain",
	}
	variables := func(r result) map[string]string {
		got := map[string]string{}
		for line := range strings.Lines(p.ok(r).stdout) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			got[name] = value
		}
		return got
	}
	image := map[string]string{
		"JAVA_HOME": "/opt/java", "VIRTUAL_ENV": "/opt/venv", "LANG": "C.UTF-8",
		"PATH": "/opt/tool/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
	// The control: without fence and without fence env all of it arrives.
	control := variables(p.sh(`apptainer exec img.sif env`, job...))
	for _, kv := range job {
		name, value, _ := strings.Cut(strings.TrimPrefix(kv, "APPTAINERENV_"), "=")
		if control[name] != value {
			t.Errorf("control: %s is %q in the container, want %q", name, control[name], value)
		}
	}
	for _, tc := range []struct {
		name, script string
		named        []string
	}{
		{"fence alone", `apptainer exec ` + bind + ` img.sif /.fence/fence --status-fd 9 -- env 9>status.json`,
			[]string{"HF_TOKEN", "LC_CANARY", "MYTOKEN", "PIP_INDEX_URL", "SSH_AUTH_SOCK", "WANDB_API_KEY"}},
		// What the clean environment of fence env keeps out is not there to be named; what is handed over on purpose is.
		{"and fence env", `eval "$(fence env)"; apptainer exec img.sif /.fence/fence --status-fd 9 -- env 9>status.json`, []string{"MYTOKEN"}},
		{"bare form", `eval "$(fence env)"; apptainer exec img.sif /.fence/fence --form bare --status-fd 9 -- env 9>status.json`, []string{"MYTOKEN"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := place{t, p.dir}
			r := p.sh(tc.script, job...)
			got := variables(r)
			for name, value := range image {
				if got[name] != value || control[name] != value {
					t.Errorf("the image's %s is %q, and %q without the fence; want %q", name, got[name], control[name], value)
				}
			}
			line := p.read("status.json")
			if strings.Contains(r.stdout+r.stderr+line, "canary-") || got["OF_THE_JOB"] != "" {
				t.Errorf("something of the job's passed:\n%s%s%s", r.stdout, r.stderr, line)
			}
			if status := decoded[status.Status](t, line); !slices.Equal(status.DroppedEnv, tc.named) {
				t.Errorf("named: %q, want %q", status.DroppedEnv, tc.named)
			}
		})
	}
	if r := p.ok(p.sh(`eval "$(fence env)"; apptainer exec img.sif /.fence/fence -- tool`)); r.stdout != "tool from the image\n" {
		t.Errorf("a program on the image's PATH: %q", r.stdout)
	}
	// Naming it does not help either, and the value is not repeated.
	if r := p.sh(`apptainer exec `+bind+` img.sif /.fence/fence --env HF_TOKEN --why "I want it" -- env`, job...); r.code != 2 || strings.Contains(r.stdout+r.stderr, "canary-") {
		t.Errorf("--env HF_TOKEN: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
