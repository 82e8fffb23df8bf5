package rollout

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/pkg/result"
	"fence/test/moments"
)

func full() bool { return os.Getenv("TEST_FULL") != "" }

// A run that is killed at any moment is finished by the same command, with the
// results of one that nobody has killed, and nothing of it is left.
func TestRun_Killed(t *testing.T) {
	p := newPlace(t)
	p.mkdir("tmp")
	const daemon = `setsid sh -c 'trap "" TERM HUP; while :; do sleep 86400.5; done' >/dev/null 2>&1 &
`
	p.task("leaves", "touch /it; mkdir -p /shut/in; echo x >/shut/in/x; chmod 000 /shut/in /shut\n"+daemon, rewards, "")
	p.task("half", "touch /it\n", "cp /it /logs/verifier/kept; echo 0.25 >/logs/verifier/reward.txt\n", "")
	p.task("none", "exit 3\n", "echo nothing\n", "")
	// What is opened makes the gate expect more than its built-in.
	args := p.args("validate", "-n", "2", "--open", "/etc/hostname:a test")
	command := func(p *place) *exec.Cmd {
		cmd := p.command(args...)
		cmd.Env = append(cmd.Env, "TMPDIR="+p.path("tmp"))
		return cmd
	}
	stop := moments.Watch(t, func(int) {}, p.path("out"), p.path("scratch"), p.path("tmp"))
	want := p.ended(command(p))
	total := stop()
	if total < 100 || want.code != 1 || len(want.records) != 6 || want.records["oracle leaves"] != "1 of reward.txt, try 1" {
		t.Fatalf("undisturbed: %d moments, %+v", total, want)
	}
	kills, killed, running := 3, 0, 0
	if full() {
		kills = 20
	}
	random := rand.New(rand.NewPCG(6, 20))
	for i := range kills {
		nth := 1 + (i*total+random.IntN(total))/kills // one in each part of the run
		t.Run(fmt.Sprintf("%d of %d", nth, total), func(t *testing.T) {
			p := *p
			p.t = t
			for _, dir := range []string{"out", "tmp"} {
				if err := os.RemoveAll(p.path(dir)); err != nil {
					t.Fatal(err)
				}
				p.mkdir(dir)
			}
			cmd := command(&p)
			was := 0
			stop := moments.Watch(t, func(n int) {
				if n == nth {
					was = len(p.processes())
					_ = cmd.Process.Kill()
				}
			}, p.path("out"), p.path("scratch"), p.path("tmp"))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			stop()
			if cmd.ProcessState.ExitCode() < 0 {
				killed++
			}
			if was > 1 {
				running++
			}
			moments.Gone(t, p.processes)
			p.nothing("after the kill")
			t.Logf("killed with %d processes, %s", was, phases(p.path("out")))

			p.hourLater()
			got := p.ended(command(&p))
			if !maps.Equal(got.records, want.records) || got.code != want.code {
				t.Errorf("exit code %d, %v\nundisturbed %d, %v", got.code, got.records, want.code, want.records)
			}
			if !slices.Equal(got.files, want.files) {
				t.Errorf("the files of the run are\n%q\nundisturbed\n%q", got.files, want.files)
			}
			moments.Gone(t, p.processes)
			p.nothing("in the end")
			for _, dir := range []string{"scratch", "tmp"} {
				if left := p.files(dir); len(left) > 0 {
					t.Errorf("left in %s: %q", dir, left)
				}
			}
		})
	}
	// How much a run does is not always the same.
	if !t.Failed() && (killed < kills*3/4 || running < kills/2) {
		t.Errorf("of %d runs only %d were killed before they had ended, %d with containers", kills, killed, running)
	}
}

// ended is a run that came to its end.
type ended struct {
	code    int
	records map[string]string
	files   []string
}

func (p *place) ended(cmd *exec.Cmd) ended {
	p.t.Helper()
	r := p.run(cmd)
	return ended{r.code, outcomes(r.records), p.files("out")}
}

// hourLater makes halves of files in job folders as old as they must be to be
// nobody's.
func (p *place) hourLater() {
	p.t.Helper()
	halves, err := filepath.Glob(p.path("out/run/*/.*.json.*"))
	for _, half := range halves {
		err = errors.Join(err, os.Chtimes(half, time.Time{}, time.Now().Add(-2*time.Hour)))
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// outcomes are what trials of undisturbed runs have in common.
func outcomes(records map[string]result.Trial) map[string]string {
	all := map[string]string{}
	for key, r := range records {
		s := word(r)
		if r.Fault != nil {
			s += " in " + r.Fault.Phase + " by " + r.Fault.Cause
		} else if r.Verify != nil {
			s += " of " + r.Verify.From
		}
		all[key] = fmt.Sprintf("%s, try %d", s, r.Tries)
	}
	return all
}

// files are all below a folder of the place's, by their paths.
func (p *place) files(dir string) (all []string) {
	p.t.Helper()
	root := p.path(dir)
	if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if path != root {
			all = append(all, strings.TrimPrefix(path, root+"/"))
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// processes are those of the place's runs, but for this one.
func (p *place) processes() []int {
	return slices.DeleteFunc(processes(p.dir), func(pid int) bool { return pid == os.Getpid() })
}

// nothing looks for mounts and sockets of the place's runs.
func (p *place) nothing(when string) {
	p.t.Helper()
	for _, table := range []string{"/proc/self/mountinfo", "/proc/net/unix"} {
		data, err := os.ReadFile(table)
		if err != nil {
			p.t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, p.dir) {
				p.t.Errorf("%s there is in %s: %s", when, table, line)
			}
		}
	}
	_ = filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			p.t.Errorf("%s there is a socket: %s", when, path)
		}
		return nil
	})
}

// phases are the last lines of the logs of trials that have no result.
func phases(out string) string {
	logs, _ := filepath.Glob(out + "/run/*/*/trial.log")
	var all []string
	for _, log := range logs {
		if _, err := os.Stat(filepath.Join(filepath.Dir(log), result.ResultFile)); err == nil {
			all = append(all, "done")
			continue
		}
		data, _ := os.ReadFile(log)
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		_, last, _ := strings.Cut(lines[len(lines)-1], " ")
		all = append(all, fmt.Sprintf("%q", last))
	}
	return fmt.Sprint(all)
}
