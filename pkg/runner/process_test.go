package runner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fence/pkg/result"
)

// Where TestMain finds that it is one of several processes with a folder.
const child = "RUNNER_TEST_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(child); what != "" {
		os.Exit(process(what))
	}
	os.Exit(m.Run())
}

const others = 40 // trials of those processes

// process is a run in a process of its own: "share OUT" waits in its first
// trials until standard input ends, "hang OUT N" never ends the trials from the
// Nth on.
func process(what string) int {
	var how, out string
	var from int
	if _, err := fmt.Sscan(what, &how, &out, &from); err != nil {
		panic(err)
	}
	items := Items(specs(others), oracle, 1)
	_, err := Run(context.Background(), Options{
		Out: out, Items: items, Jobs: 3,
		Try: func(ctx context.Context, i Item, dir string) result.Trial {
			if how == "share" {
				fmt.Println("begun")
				_, _ = io.Copy(io.Discard, os.Stdin)
				f, err := os.OpenFile(filepath.Join(filepath.Dir(out), "ran", i.Name), os.O_CREATE|os.O_EXCL, 0o644)
				if err != nil {
					fmt.Println("twice", i.Name)
				}
				f.Close()
			}
			t := writes(ctx, i, dir)
			if how == "hang" && i.Spec.Task.Name >= fmt.Sprintf("task-%03d", from) {
				fmt.Println("begun")
				select {}
			}
			return t
		},
		Record: func(t result.Trial) error { fmt.Println("record", t.TrialName); return nil },
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// start is such a process, with the lines that it prints.
func start(t *testing.T, what string) (*exec.Cmd, io.Closer, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), child+"="+what)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	return cmd, in, bufio.NewScanner(out)
}

// Two runs in one folder, each with all trials: each trial is run once, and both
// have all records.
func TestRun_TwoProcesses(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "ran"), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(top, "run")
	var cmds [2]*exec.Cmd
	var ins [2]io.Closer
	var lines [2]*bufio.Scanner
	for i := range cmds {
		cmds[i], ins[i], lines[i] = start(t, "share "+out+" 0")
		if !lines[i].Scan() || lines[i].Text() != "begun" {
			t.Fatalf("%q", lines[i].Text())
		}
	}
	for i := range cmds {
		ins[i].Close()
	}
	for i := range cmds {
		records := map[string]bool{}
		for lines[i].Scan() {
			word, name, _ := strings.Cut(lines[i].Text(), " ")
			switch word {
			case "begun":
			case "record":
				records[name] = true
			default:
				t.Error(lines[i].Text())
			}
		}
		if err := cmds[i].Wait(); err != nil || len(records) != others {
			t.Errorf("%v, %d records", err, len(records))
		}
	}
	if ran, err := os.ReadDir(filepath.Join(top, "ran")); err != nil || len(ran) != others {
		t.Errorf("%d trials were run, %v", len(ran), err)
	}
	whole := options(t, Items(specs(others), oracle, 1))
	mustRun(t, t.Context(), whole)
	sameLeft(t, left(t, out), left(t, whole.Out))
	var j result.Job
	if err := result.ReadJob(filepath.Join(out, result.ResultFile), &j); err != nil || j.Stats.Completed != others || j.Stats.Running != 0 || j.FinishedAt == nil {
		t.Errorf("%+v, %v", j, err)
	}
}

// A run that is killed, wherever it is, and run again comes to what one that was
// left alone comes to.
func TestRun_Killed(t *testing.T) {
	items := Items(specs(others), oracle, 1)
	whole := options(t, items)
	mustRun(t, t.Context(), whole)
	want := left(t, whole.Out)
	for _, from := range []int{0, 1, 7, others - 3} {
		o := options(t, items)
		o.Settings = nil
		cmd, _, lines := start(t, fmt.Sprintf("hang %s %d", o.Out, from))
		done, hanging := 0, 0
		for hanging < 3 && lines.Scan() {
			if lines.Text() == "begun" {
				hanging++
			} else {
				done++
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		s := mustRun(t, t.Context(), o)
		if s.Kept < done || !s.Done() || s.Ended < 3 {
			t.Errorf("killed after %d: %+v", done, s)
		}
		sameLeft(t, left(t, o.Out), want)
	}
}
