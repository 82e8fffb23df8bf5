package guide

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"fence/test/bed"
)

// block is what a person types, in these very words of the design. README.md
// has the report before the fence made before `fence env` too (readme_test.go).
const block = `eval "$(fence env)"            # APPTAINER_BINDPATH, _NO_MOUNT, _CLEANENV, _PID ... : fence and probe appear in every container under /.fence
probe > host.json
apptainer exec img.sif /.fence/probe > before.json
apptainer exec img.sif /.fence/fence -- /.fence/probe > after.json
probe diff before.json after.json && probe gate after.json --before before.json --expect strict
`

// commands are the block's, as bash names them.
var commands = []string{
	`eval "$(fence env)"`,
	`probe > host.json`,
	`apptainer exec img.sif /.fence/probe > before.json`,
	`apptainer exec img.sif /.fence/fence -- /.fence/probe > after.json`,
	`probe diff before.json after.json`,
	`probe gate after.json --before before.json --expect strict`,
}

// In a script, as a job would have it.
func TestBlock_Script(t *testing.T) {
	p := newPlace(t)
	p.block(func() map[string]int {
		p.sh(traced())
		return p.statuses()
	})
	p.negatives()
}

// In a batch job. The job's folder and log lie on the shared storage.
func TestBlock_BatchJob(t *testing.T) {
	t.Parallel() // most of it is sbatch asking now and then whether the job has ended
	bed.Require(t, "slurm")
	p := newPlace(t)
	p.block(func() map[string]int {
		p.write("job.sh", "#!/bin/bash\n#SBATCH --output=job.log\n"+traced(), 0o755)
		r := p.run(p.here(bed.Command(t, "sbatch", "--wait", "job.sh")))
		log := p.read("job.log")
		p.ok(r)
		if !strings.Contains(log, "\nanswer: yes") {
			t.Errorf("the job's log has no answer:\n%s", log)
		}
		return p.statuses()
	})
	host := p.report("host.json")
	if host.Subject.Slurm["job_id"] == "" {
		t.Errorf("the report of a job does not say so: %v", host.Subject.Slurm)
	}
}

// On a terminal, each command typed when the prompt is there.
func TestBlock_Terminal(t *testing.T) {
	p := newPlace(t)
	p.block(func() map[string]int {
		got := map[string]int{}
		term := p.terminal()
		for i, line := range strings.Split(strings.TrimSpace(block), "\n") {
			text, code := term.typed(line)
			got[commands[min(i, 4)]] = code
			if i == 4 {
				got[commands[5]] = code // of the two together
				if !strings.Contains(text, "Shared project filesystem") || strings.Count(text, "\nanswer: yes") != 2 {
					t.Errorf("the terminal shows\n%s", text)
				}
			}
		}
		return got
	})
}

// traced is the block with the exit status of each of its commands written to
// a file: bash runs the trap before each command.
func traced() string {
	return "trap 'echo \"$? $BASH_COMMAND\" >>statuses' DEBUG\n" + block + "true end\n"
}

// statuses are those that traced wrote.
func (p place) statuses() map[string]int {
	p.t.Helper()
	got := map[string]int{}
	last := ""
	for line := range strings.Lines(p.read("statuses")) {
		code, command, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(code)
		if !ok || err != nil {
			p.t.Fatalf("a line of statuses: %q", line)
		}
		got[last], last = n, command
		if strings.HasPrefix(last, "export APPTAINER_") {
			last = commands[0]
		}
	}
	os.Remove(p.path("statuses"))
	return got
}

// block runs the block by run, which says how each command ended, and checks
// all that it must leave. It is run again if a check got no answer in time.
func (p place) block(run func() map[string]int) {
	p.t.Helper()
	var got map[string]int
	for range 3 {
		got = run()
		if !late(p.report("host.json")) && !late(p.report("before.json")) && !late(p.report("after.json")) {
			break
		}
		p.t.Log("a check got no answer in time: again")
	}
	for _, c := range commands {
		if code, ok := got[c]; !ok || code != 0 {
			p.t.Errorf("%s: exit status %d (%v)", c, code, ok)
		}
	}
	host, before, after := p.report("host.json"), p.report("before.json"), p.report("after.json")
	for _, r := range []struct{ is, want string }{
		{host.Run.Label, "host"}, {before.Run.Label, "before"}, {after.Run.Label, "after"},
		{host.Subject.Runtime, ""}, {before.Subject.Runtime, "apptainer"}, {after.Subject.Runtime, "apptainer"},
	} {
		if r.is != r.want {
			p.t.Errorf("a report says %q, want %q", r.is, r.want)
		}
	}
	if before.Controls.Seccomp.Mode != 0 || before.Controls.Landlock.Layers != 0 || after.Controls.Seccomp.Mode != 2 || after.Controls.Landlock.Layers != 1 {
		p.t.Errorf("controls before and after: %+v, %+v", before.Controls, after.Controls)
	}
	uid, _, _ := bed.User(p.t)
	if host.Subject.UID != uid || after.Subject.UID != uid {
		p.t.Errorf("reports of uid %d and %d, want %d", host.Subject.UID, after.Subject.UID, uid)
	}
}

// negatives are the answers that a gate must not give: it is in the same
// folder, after the block.
func (p place) negatives() {
	for _, tc := range []struct {
		name, script string
		want         int
		say          string
	}{
		{"a report made without the fence", `probe gate before.json --expect strict`, 1, "ctl.seccomp: mode 0"},
		{"the host's", `probe gate host.json --expect strict`, 1, "ctl.landlock.layers: 0 layers"},
		{"what is not fenced stops the chain", `probe diff before.json before.json && echo went on`, 1, "answer: no"},
		{"a check that was left out", `apptainer exec img.sif /.fence/fence -- /.fence/probe --skip net.udp > part.json &&
			probe gate part.json --before before.json --expect strict`, 3, "net.udp.socket"},
		{"a comparison without it", `probe diff before.json part.json && echo went on`, 3, "UDP socket (DNS)"},
		{"a report cut short", `head -c 2000 after.json > cut.json; probe gate cut.json --expect strict`, 2, "cut.json:"},
		{"an empty one: the container did not start", `apptainer exec nosuch.sif /.fence/probe > empty.json; probe gate empty.json --expect strict`, 2, "empty.json:1: empty"},
		{"no fence in the container", `env -u APPTAINER_BINDPATH apptainer exec img.sif /.fence/fence -- /.fence/probe > none.json || probe gate none.json --expect strict`, 2, "none.json:1: empty"},
	} {
		r := p.sh(`eval "$(fence env)"; ` + tc.script)
		if r.code != tc.want || !strings.Contains(r.stdout+r.stderr, tc.say) || strings.Contains(r.stdout, "went on") {
			p.t.Errorf("%s: exit code %d, want %d, and %q\n%s%s", tc.name, r.code, tc.want, tc.say, r.stdout, r.stderr)
		}
	}
}

// terminal is an interactive shell on a pseudo-terminal.
type terminal struct {
	t     *testing.T
	ptmx  *os.File
	shown string
}

var prompt = regexp.MustCompile(`\[([0-9]+)\]> $`)

func (p place) terminal() *terminal {
	p.t.Helper()
	ptmx, tty := openPTY(p.t)
	// Without line editing what is shown is what is printed.
	cmd := p.here(bed.Command(p.t, "bash", "--norc", "--noediting", "-i"))
	cmd.Env = append(cmd.Env, "PS1=[$?]> ", "TERM=dumb")
	onTTY(cmd, tty)
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	tty.Close()
	term := &terminal{t: p.t, ptmx: ptmx}
	p.t.Cleanup(func() {
		ptmx.Close() // hangs up
		cmd.Wait()
	})
	term.wait()
	return term
}

// typed types a line and returns what it printed, and its exit status.
func (term *terminal) typed(line string) (string, int) {
	term.t.Helper()
	if _, err := fmt.Fprintln(term.ptmx, line); err != nil {
		term.t.Fatal(err)
	}
	return term.wait()
}

func (term *terminal) wait() (string, int) {
	term.t.Helper()
	buf := make([]byte, 65536)
	text := ""
	for {
		n, err := term.ptmx.Read(buf)
		text += strings.ReplaceAll(string(buf[:n]), "\r\n", "\n")
		term.shown += string(buf[:n])
		if m := prompt.FindStringSubmatch(text); m != nil {
			code, _ := strconv.Atoi(m[1])
			return text, code
		}
		if err != nil {
			term.t.Fatalf("the terminal ended: %v\n%s", err, term.shown)
		}
	}
}
