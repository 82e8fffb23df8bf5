package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/job"
	"fence/pkg/result"
	"fence/pkg/spec"
	"fence/pkg/task"
)

var oracle = []result.AgentConfig{{Name: "oracle"}}

func specs(n int) (all []spec.Spec) {
	for i := range n {
		name := fmt.Sprintf("task-%03d", i)
		all = append(all, spec.Spec{Task: task.Task{Name: name, Dir: "/data/set/" + name, Source: "set"}, Checksum: "sum-" + name})
	}
	return all
}

// acted is a trial that ended as its item says: every third is solved, every
// fourth a fault of the task.
func acted(i Item) result.Trial {
	n := 0
	for _, r := range i.Name {
		n += int(r)
	}
	t := result.Trial{StartedAt: time.Unix(1000, 0), FinishedAt: time.Unix(1060, 0), AgentInfo: result.AgentInfo{Name: i.Agent.Name, Version: "1"}, Agent: result.AgentEnd{Stop: "done"}}
	if n%4 == 0 {
		t.Fault = fault("verify", "reward_missing", "task")
		t.ExceptionInfo = &result.ExceptionInfo{Type: "RewardFileNotFoundError", Message: "no reward", At: t.FinishedAt}
		return t
	}
	reward := 0.0
	if n%3 == 0 {
		reward = 1
	}
	t.Reward, t.VerifierResult = &reward, &result.VerifierResult{Rewards: map[string]float64{"reward": reward}}
	return t
}

func fault(phase, class, cause string) *result.Fault {
	return &result.Fault{Phase: phase, Class: class, Cause: cause, Message: "it broke"}
}

func broke(class, cause string) result.Trial {
	return result.Trial{StartedAt: time.Unix(1000, 0), Fault: fault("start", class, cause)}
}

// writes leaves what a trial does, then acts.
func writes(_ context.Context, i Item, dir string) result.Trial {
	if err := os.MkdirAll(filepath.Join(dir, "agent"), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "agent", "oracle.txt"), fmt.Appendf(nil, "try %d", i.Tries), 0o644); err != nil {
		panic(err)
	}
	return acted(i)
}

// options are of a run whose pauses are over at once.
func options(t *testing.T, items []Item) Options {
	return Options{
		Out: filepath.Join(t.TempDir(), "run"), Items: items, Jobs: 3, Try: writes,
		Settings: []result.Setting{{Name: "--net", Value: "none"}},
		Sleep:    func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) },
	}
}

// left is what a run has left, by trial: all files but logs, with what differs
// from run to run (ids, tries) taken out.
func left(t *testing.T, out string) map[string]string {
	t.Helper()
	all := map[string]string{}
	found, err := result.Trials(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Err != nil {
			t.Errorf("%s: %v", f.Dir, f.Err)
			continue
		}
		text := fmt.Sprint(f.Trial.Fault, f.Trial.TaskName, f.Trial.Attempt, f.Trial.TrialName == filepath.Base(f.Dir))
		if f.Trial.Reward != nil {
			text += fmt.Sprint(*f.Trial.Reward)
		}
		err := filepath.WalkDir(f.Dir, func(path string, d fs.DirEntry, err error) error {
			if d.Name() == result.RetriesFolder {
				return fs.SkipDir
			}
			rel, _ := filepath.Rel(f.Dir, path)
			text += " " + rel
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f.Dir)] = text
	}
	return all
}

func sameLeft(t *testing.T, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s\n got %s\nwant %s", k, got[k], v)
			}
		}
		t.Fatalf("%d trials, want %d", len(got), len(want))
	}
}

// once is the clock of a run that writes the job's figures at its begin, once
// meanwhile, and at its end.
func once(ctx context.Context, _ time.Duration) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func mustRun(t *testing.T, ctx context.Context, o Options) Summary {
	t.Helper()
	s, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRun(t *testing.T) {
	items := Items(append(specs(20), specs(3)...), []result.AgentConfig{{Name: "oracle"}, {Name: "nop"}}, 2)
	o := options(t, items)
	o.Sleep = once
	o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
		i.Phase("works")
		return writes(ctx, i, dir)
	}
	var records []result.Trial
	o.Record = func(r result.Trial) error { records = append(records, r); return nil }
	kinds := map[Kind]int{}
	o.Event = func(e Event) { kinds[e.Kind]++ }
	s := mustRun(t, t.Context(), o)
	if s.Trials != 80 || s.Ended != 80 || !s.Done() || s.Kept+s.Stopped+s.Left != 0 || len(records) != 80 {
		t.Errorf("%+v, %d records", s, len(records))
	}
	if kinds[Begun] != 160 || kinds[Ended] != 80 || kinds[Kept] != 0 {
		t.Errorf("events %v", kinds)
	}
	faults := 0
	for _, r := range records {
		on, err := result.Read(filepath.Join(o.Out, r.TrialName))
		if err != nil || on.ID != r.ID {
			t.Errorf("%s: %v", r.TrialName, err)
		}
		if _, err := os.Stat(filepath.Join(o.Out, r.TrialName, result.ExceptionFile)); (err == nil) != (r.Fault != nil) {
			t.Errorf("%s: exception.txt: %v", r.TrialName, err)
		}
		if r.Fault != nil {
			faults++
		}
	}
	if s.Faults != faults || faults == 0 || faults == 80 {
		t.Errorf("%d faults, said %d", faults, s.Faults)
	}
	var j result.Job
	if err := result.ReadJob(filepath.Join(o.Out, result.ResultFile), &j); err != nil {
		t.Fatal(err)
	}
	if j.Total != 80 || j.Stats.Completed != 80 || j.Stats.Errored != faults || j.Stats.Running != 0 || j.FinishedAt == nil || len(j.Stats.Evals) != 2 {
		t.Errorf("%+v", j)
	}
	if locks, err := os.ReadDir(filepath.Join(o.Out, ours, "locks")); err != nil || len(locks) != 0 {
		t.Errorf("locks %v, %v", locks, err)
	}
}

// As many trials run as were asked for, and no more.
func TestRun_AtATime(t *testing.T) {
	for _, jobs := range []int{1, 3, 20} {
		o := options(t, Items(specs(10), oracle, 1))
		o.Jobs = jobs
		synctest.Test(t, func(t *testing.T) {
			var running atomic.Int64
			next := make(chan struct{})
			o.Try = func(_ context.Context, i Item, _ string) result.Trial {
				running.Add(1)
				defer running.Add(-1)
				<-next
				return acted(i)
			}
			ended := make(chan Summary, 1)
			go func() {
				s, err := Run(t.Context(), o)
				if err != nil {
					t.Error(err)
				}
				ended <- s
			}()
			for left := 10; left > 0; left-- {
				synctest.Wait()
				if n, want := running.Load(), int64(min(jobs, left)); n != want {
					t.Errorf("%d at a time, %d to go: %d are running", jobs, left, n)
				}
				next <- struct{}{}
			}
			if s := <-ended; s.Ended != 10 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// However far a run came when it was stopped, the next comes to what one that
// was left alone comes to, and each record once.
func TestRun_GoesOn(t *testing.T) {
	const n = 12
	items := Items(specs(n), oracle, 1)
	whole := options(t, items)
	mustRun(t, t.Context(), whole)
	want := left(t, whole.Out)
	for stop := range n + 1 {
		o := options(t, items)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := 0
		o.Record = func(result.Trial) error {
			if ended++; ended == stop {
				cancel(errors.New("the job ends"))
			}
			return nil
		}
		if stop == 0 {
			cancel(errors.New("the job ends"))
		}
		first, err := Run(ctx, o)
		if err != nil && stop > 0 {
			t.Fatal(err)
		}
		if first.Ended+first.Stopped+first.Left != n || first.Ended < stop {
			t.Errorf("stopped after %d: %+v", stop, first)
		}
		records := map[string]int{}
		o.Record = func(r result.Trial) error { records[r.TrialName]++; return nil }
		second := mustRun(t, t.Context(), o)
		if second.Kept != first.Ended || !second.Done() || len(records) != n {
			t.Errorf("after %+v: %+v, %d records", first, second, len(records))
		}
		sameLeft(t, left(t, o.Out), want)
	}
}

// What a killed run can leave of a trial is nothing to the next.
func TestRun_AfterAKill(t *testing.T) {
	items := Items(specs(1), oracle, 1)
	dir := func(o Options) string { return filepath.Join(o.Out, items[0].Name) }
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	whole := options(t, items)
	mustRun(t, t.Context(), whole)
	want := left(t, whole.Out)
	data, err := os.ReadFile(filepath.Join(dir(whole), result.ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	good := string(data)
	faulted := whole
	faulted.Out += "-faulted"
	faulted.Try = func(context.Context, Item, string) result.Trial { return broke("session_lost", "infra") }
	mustRun(t, t.Context(), faulted)
	if data, err = os.ReadFile(filepath.Join(dir(faulted), result.ResultFile)); err != nil {
		t.Fatal(err)
	}
	broken := string(data)
	for name, tc := range map[string]struct {
		files map[string]string
		kept  int // trials that are done
		tries int // that are in retries/ at the end
	}{
		"nothing":               {nil, 0, 0},
		"an empty folder":       {map[string]string{"agent/": ""}, 0, 0},
		"config":                {map[string]string{"config.json": "{}", "trial.log": "x"}, 0, 0},
		"half a result":         {map[string]string{"result.json": good[:len(good)/2], "old": "x"}, 0, 0},
		"an empty result":       {map[string]string{"result.json": "", "verifier/reward.txt": "1"}, 0, 0},
		"another's result":      {map[string]string{"result.json": `{"schema": "rollout.trial/v9"}`}, 0, 0},
		"an unknown field":      {map[string]string{"result.json": strings.Replace(good, "{", `{"surprise": 1,`, 1)}, 0, 0},
		"text after it":         {map[string]string{"result.json": good + "{}"}, 0, 0},
		"no number":             {map[string]string{"result.json": strings.ReplaceAll(good, `"attempt": 1`, `"attempt": 0`)}, 0, 0},
		"before the rename":     {map[string]string{".result.json.ABCDEFGH": good, "agent/oracle.txt": "x"}, 0, 0},
		"whole":                 {map[string]string{"config.json": `{"task": {}}`, "agent/oracle.txt": "x", "result.json": good, "exception.txt": ""}, 1, 0},
		"a fault of the node":   {map[string]string{"result.json": broken, "agent/oracle.txt": "first"}, 0, 1},
		"a try half kept":       {map[string]string{"result.json": broken, "retries/1/agent/oracle.txt": "first"}, 0, 1},
		"a try kept":            {map[string]string{"retries/1/result.json": broken, "retries/1/agent/oracle.txt": "first"}, 0, 1},
		"a try kept, and half":  {map[string]string{"retries/1/result.json": broken, "retries/1/agent/oracle.txt": "first", "agent/oracle.txt": "second"}, 0, 1},
		"two tries":             {map[string]string{"retries/1/result.json": broken, "retries/1/agent/oracle.txt": "first", "result.json": broken}, 0, 2},
		"half a try, no result": {map[string]string{"retries/1/agent/x": "left by an unknown hand"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, items)
			for file, text := range tc.files {
				if strings.HasSuffix(file, "/") {
					if err := os.MkdirAll(filepath.Join(dir(o), file), 0o755); err != nil {
						t.Fatal(err)
					}
					continue
				}
				write(t, filepath.Join(dir(o), file), text)
			}
			// The lock of a process that is gone.
			write(t, filepath.Join(o.Out, ours, "locks", items[0].Name), "")
			if err := os.Chtimes(filepath.Join(o.Out, ours, "locks", items[0].Name), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			// Half of the job's figures, of that process and of one that lives.
			dead, living := filepath.Join(o.Out, ".result.json.ABCDEFGH"), filepath.Join(o.Out, ".result.json.IJKLMNOP")
			write(t, dead, "{")
			write(t, living, "{")
			if err := os.Chtimes(dead, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			s := mustRun(t, t.Context(), o)
			if _, err := os.Lstat(dead); err == nil {
				t.Errorf("%s is left", dead)
			}
			if _, err := os.Lstat(living); err != nil {
				t.Error(err)
			}
			if locks, err := os.ReadDir(filepath.Join(o.Out, ours, "locks")); err != nil || len(locks) > 0 {
				t.Errorf("locks are left: %v, %v", locks, err)
			}
			if s.Kept != tc.kept || !s.Done() {
				t.Errorf("%+v, want %d kept", s, tc.kept)
			}
			got, err := result.Read(dir(o))
			if err != nil || tc.kept == 0 && got.Tries != tc.tries+1 {
				t.Errorf("tries %d, want %d; %v", got.Tries, tc.tries+1, err)
			}
			for i := 1; i <= tc.tries; i++ {
				if old, err := result.Read(filepath.Join(dir(o), result.RetriesFolder, fmt.Sprint(i))); err != nil || old.Fault == nil {
					t.Errorf("retries/%d: %v", i, err)
				}
			}
			if _, ok := tc.files["retries/1/agent/oracle.txt"]; ok {
				if data, err := os.ReadFile(filepath.Join(dir(o), "retries/1/agent/oracle.txt")); string(data) != "first" {
					t.Errorf("the first try's file: %q, %v", data, err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir(o), "retries", fmt.Sprint(tc.tries+1))); err == nil {
				t.Errorf("retries/%d is there", tc.tries+1)
			}
			if tc.kept == 0 {
				sameLeft(t, left(t, o.Out), want)
			}
		})
	}
}

// When the end comes no trial begins; those under way have no result, but for
// one that has come to its verdict.
func TestRun_Stops(t *testing.T) {
	items := Items(specs(10), oracle, 1)
	o := options(t, items)
	why := errors.New("the job ends at noon")
	ctx, cancel := context.WithCancelCause(t.Context())
	var begun atomic.Int32
	all := make(chan struct{})
	o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
		if begun.Add(1) == 3 {
			close(all)
		}
		<-ctx.Done()
		if context.Cause(ctx) != why {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		if i.Name == items[1].Name {
			reward := 1.0
			return result.Trial{StartedAt: time.Unix(1000, 0), Reward: &reward, AgentInfo: result.AgentInfo{Name: "oracle"}}
		}
		return broke("stopped", "infra")
	}
	go func() {
		<-all
		cancel(why)
	}()
	records := 0
	o.Record = func(result.Trial) error { records++; return nil }
	s := mustRun(t, ctx, o)
	if s != (Summary{Trials: 10, Ended: 1, Stopped: 2, Left: 7}) || begun.Load() != 3 || records != 1 {
		t.Errorf("%+v, %d begun, %d records", s, begun.Load(), records)
	}
	for n, i := range items[:3] {
		if _, err := result.Read(filepath.Join(o.Out, i.Name)); n != 1 && !errors.Is(err, fs.ErrNotExist) || n == 1 && err != nil {
			t.Errorf("%s: %v", i.Name, err)
		}
	}
	found, err := result.Trials(o.Out)
	if err != nil || len(found) != 3 {
		t.Errorf("%d trials are listed, %v", len(found), err)
	}
	log, err := os.ReadFile(filepath.Join(o.Out, result.JobLog))
	if err != nil || strings.Count(string(log), ": stopped: the job ends at noon\n") != 2 || strings.Count(string(log), items[1].Name+": reward 1\n") != 1 {
		t.Errorf("%s %v", log, err)
	}
}

// A free slot is none any more when the end has come.
func TestTake_AfterTheEnd(t *testing.T) {
	r := run{slots: make(chan struct{}, 100)}
	if err := r.take(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the end")
	cancel(why)
	for range 50 { // which of two is ready is chosen at random
		if err := r.take(ctx); err != why {
			t.Fatal(err)
		}
	}
}

func TestRun_Retries(t *testing.T) {
	for _, tc := range []struct {
		class, cause string
		fails        int
		tries        int
		fault        bool
	}{
		{"session_lost", "infra", 0, 1, false},
		{"session_lost", "infra", 1, 2, false},
		{"session_lost", "infra", 2, 3, false},
		{"session_lost", "infra", 3, 3, true},
		{"internal", "unknown", 1, 2, false},
		{"image_missing", "infra", 1, 1, true},
		{"not_isolated", "infra", 1, 1, true},
		{"reward_missing", "task", 1, 1, true},
		{"memory_limit", "agent", 1, 1, true},
	} {
		items := Items(specs(1), oracle, 1)
		o := options(t, items)
		o.Retries = 2
		nth := 0
		o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
			if nth++; i.Tries != nth {
				t.Errorf("try %d is told that it is %d", nth, i.Tries)
			}
			good := writes(ctx, i, dir)
			if nth <= tc.fails {
				return broke(tc.class, tc.cause)
			}
			good.Fault, good.ExceptionInfo, good.Reward = nil, nil, new(float64)
			return good
		}
		var pauses []time.Duration
		sleep := o.Sleep
		o.Sleep = func(ctx context.Context, d time.Duration) error { // of the tries, and of who writes the job's figures
			if d < time.Second || d > time.Second {
				pauses = append(pauses, d)
			}
			return sleep(ctx, d)
		}
		o.Now = func() time.Time { return time.Unix(2000, 0) }
		again := 0
		o.Event = func(e Event) {
			if e.Kind == Again {
				again++
			}
		}
		s := mustRun(t, t.Context(), o)
		got, err := result.Read(filepath.Join(o.Out, items[0].Name))
		if err != nil || got.Tries != tc.tries || (got.Fault != nil) != tc.fault || s.Ended != 1 || nth != tc.tries || again != tc.tries-1 || len(pauses) != tc.tries-1 {
			t.Errorf("%+v: %d tries, fault %v, %v, %+v, pauses %v", tc, got.Tries, got.Fault, err, s, pauses)
		}
		for i := 1; i < tc.tries; i++ {
			dir := filepath.Join(o.Out, items[0].Name, result.RetriesFolder, fmt.Sprint(i))
			old, err := result.Read(dir)
			text, _ := os.ReadFile(filepath.Join(dir, "agent", "oracle.txt"))
			if err != nil || old.Fault == nil || old.Fault.Class != tc.class || old.Tries != i || string(text) != fmt.Sprintf("try %d", i) {
				t.Errorf("%+v: retries/%d: %v, %v, %q", tc, i, err, old.Fault, text)
			}
			if pauses[i-1] < 0 || pauses[i-1] > patience(i) {
				t.Errorf("a pause of %v before retry %d", pauses[i-1], i)
			}
		}
		var j result.Job
		if err := result.ReadJob(filepath.Join(o.Out, result.ResultFile), &j); err != nil || j.Stats.Retries != tc.tries-1 || j.Stats.Completed != 1 {
			t.Errorf("%+v: the job's %+v, %v", tc, j.Stats, err)
		}
	}
}

// A trial that waits for its next try keeps none from running.
func TestRun_WaitsWithoutASlot(t *testing.T) {
	items := Items(specs(2), oracle, 1)
	o := options(t, items)
	o.Jobs, o.Retries = 1, 1
	other := make(chan struct{})
	o.Now = func() time.Time { return time.Unix(2000, 0) }
	o.Sleep = func(ctx context.Context, d time.Duration) error {
		if d == time.Second {
			<-ctx.Done()
			return nil
		}
		select {
		case <-other:
			return nil
		case <-time.After(time.Minute):
			t.Error("the other trial waits for this one's pause")
			return nil
		}
	}
	o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
		if i.Name == items[1].Name {
			close(other)
		} else if i.Tries == 1 {
			return broke("session_lost", "infra")
		}
		return acted(i)
	}
	if s := mustRun(t, t.Context(), o); !s.Done() {
		t.Errorf("%+v", s)
	}
}

// A trial that another process took over meanwhile is that one's: what this one
// made of it is not written, whatever it is.
func TestRun_LockTaken(t *testing.T) {
	o := options(t, Items(specs(1), oracle, 1))
	lock := filepath.Join(o.Out, ours, "locks", o.Items[0].Name)
	o.Try = func(_ context.Context, i Item, _ string) result.Trial {
		if err := errors.Join(os.Remove(lock), os.WriteFile(lock, []byte(`{"id":"another"}`), 0o644)); err != nil {
			t.Error(err)
		}
		return acted(i)
	}
	var events []Kind
	o.Event = func(e Event) { events = append(events, e.Kind) }
	if s := mustRun(t, t.Context(), o); s.Stopped != 1 || s.Done() || !slices.Equal(events, []Kind{Begun, Stopped}) {
		t.Errorf("%+v, %v", s, events)
	}
	if _, err := os.Lstat(filepath.Join(o.Out, o.Items[0].Name, result.ResultFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it has a result: %v", err)
	}
	if data, _ := os.ReadFile(lock); string(data) != `{"id":"another"}` {
		t.Errorf("the other's lock: %s", data)
	}
}

// The same run again makes another try of what the node broke, and of nothing else.
func TestRun_AgainAfterFaults(t *testing.T) {
	items := Items(specs(4), oracle, 1)
	o := options(t, items)
	classes := map[string]string{items[0].Name: "infra", items[1].Name: "unknown", items[2].Name: "task", items[3].Name: "agent"}
	o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
		return broke("image_missing", classes[i.Name])
	}
	if s := mustRun(t, t.Context(), o); s.Faults != 4 || !s.Done() {
		t.Errorf("%+v", s)
	}
	var ran []string
	var mu sync.Mutex
	o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, i.Name)
		return acted(i)
	}
	if s := mustRun(t, t.Context(), o); s.Kept != 2 || s.Ended != 2 {
		t.Errorf("%+v", s)
	}
	slices.Sort(ran)
	if want := slices.Sorted(slices.Values([]string{items[0].Name, items[1].Name})); !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

// A task that was mended is tried again, also where it has a verdict.
func TestRun_TaskChanged(t *testing.T) {
	s := specs(2)
	o := options(t, Items(s, oracle, 1))
	mustRun(t, t.Context(), o)
	s[1].Checksum = "mended"
	o.Items = Items(s, oracle, 1)
	var said []string
	o.Say = func(text string) { said = append(said, text) }
	if sum := mustRun(t, t.Context(), o); sum.Kept != 1 || sum.Ended != 1 || len(said) != 1 || said[0] != "oracle: 1 of 2 trials are done already; done again are those whose tasks have changed since: 1" {
		t.Errorf("%+v, %q", sum, said)
	}
	if _, err := result.Read(filepath.Join(o.Out, o.Items[1].Name, result.RetriesFolder, "1")); err != nil {
		t.Error(err)
	}
}

// Trials of other settings are not mixed, and nothing is changed by trying.
func TestRun_OtherSettings(t *testing.T) {
	o := options(t, Items(specs(1), oracle, 1))
	mustRun(t, t.Context(), o)
	before, _ := os.ReadFile(filepath.Join(o.Out, result.ConfigFile))
	o.Items = Items(specs(1), []result.AgentConfig{{Name: "nop"}}, 1)
	o.Settings = []result.Setting{{Name: "--net", Value: "none"}, {Name: "--open", Value: "/a"}, {Name: "--open", Value: "/b"}}
	o.Try = func(context.Context, Item, string) result.Trial {
		t.Error("a trial is run")
		return broke("x", "infra")
	}
	s, err := Run(t.Context(), o)
	var m *Mismatch
	want := o.Out + " holds trials of other settings: --agent was oracle and is now nop, --open was not set and is now /a, /b"
	if !errors.As(err, &m) || err.Error() != want || s.Left != 1 {
		t.Errorf("%v, %+v", err, s)
	}
	if after, _ := os.ReadFile(filepath.Join(o.Out, result.ConfigFile)); string(after) != string(before) {
		t.Errorf("config.json is %s", after)
	}
	// More tasks and attempts, and how many at a time, are no other settings.
	o = Options{Out: o.Out, Items: Items(specs(3), oracle, 2), Jobs: 1, Retries: 5, Try: writes, Settings: o.Settings[:1]}
	if s := mustRun(t, t.Context(), o); s.Kept != 1 || s.Ended != 5 {
		t.Errorf("%+v", s)
	}
	var c result.JobConfig
	if err := result.ReadJob(filepath.Join(o.Out, result.ConfigFile), &c); err != nil || c.Attempts != 2 || len(c.Tasks) != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	// What is skipped is kept, until it is not any more.
	for _, skipped := range [][]result.Skipped{{{Path: "/tasks/odd", Reason: "it has no tests"}, {Path: o.Items[2].Spec.Task.Dir, Reason: "it was broken"}}, nil} {
		o.Skipped = skipped
		mustRun(t, t.Context(), o)
	}
	var then result.JobConfig
	if err := result.ReadJob(filepath.Join(o.Out, result.ConfigFile), &then); err != nil || len(then.Skipped) != 1 || then.Skipped[0] != (result.Skipped{Path: "/tasks/odd", Reason: "it has no tests"}) {
		t.Errorf("skipped are %+v, %v", then.Skipped, err)
	}
	// Nor is anything added to a job of Harbor's own.
	o.Out = t.TempDir()
	if err := os.WriteFile(filepath.Join(o.Out, result.ConfigFile), []byte(`{"job_name": "x", "agents": [{"name": "oracle"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "another program's job") {
		t.Error(err)
	}
}

// A run whose results cannot be written ends, and says why.
func TestRun_CannotWrite(t *testing.T) {
	o := options(t, Items(specs(20), oracle, 1))
	o.Jobs = 1
	o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o644)); err != nil {
			t.Error(err)
		}
		return acted(i)
	}
	if s, err := Run(t.Context(), o); err == nil || s.Ended != 0 || s.Left != 20 || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("%+v, %v", s, err)
	}
	o = options(t, Items(specs(20), oracle, 1))
	o.Jobs = 1
	gone := errors.New("nobody reads")
	o.Record = func(result.Trial) error { return gone }
	if s, err := Run(t.Context(), o); !errors.Is(err, gone) || s.Ended != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A disk that is full ends a run, but not the trials that are under way; the
// same again goes on.
func TestRun_Full(t *testing.T) {
	for name, c := range map[string]struct {
		try   func(i Item, dir string) result.Trial
		ended int
	}{
		"a fault": {func(i Item, _ string) result.Trial {
			r := broke(result.OutFull, "infra")
			r.Fault.Hint = "make room"
			return r
		}, 2},
		"a verdict": {func(i Item, dir string) result.Trial {
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o644)); err != nil {
				t.Error(err)
			}
			return acted(i)
		}, 1},
		"a record": {func(i Item, _ string) result.Trial { return acted(i) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, Items(specs(20), oracle, 1))
			o.Jobs, o.Retries = 2, 1
			first, second := o.Items[0].Name, o.Items[1].Name
			begun := make(chan struct{})
			o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
				switch i.Name {
				case first:
					<-begun
					lock, end := filepath.Join(o.Out, ours, "locks", second), time.Now().Add(time.Minute)
					for exists(lock) {
						if time.Now().After(end) {
							t.Errorf("%s stays", lock)
							break
						}
						time.Sleep(time.Millisecond)
					}
					if ctx.Err() != nil {
						t.Error("a trial under way is stopped")
					}
				case second:
					close(begun)
					return c.try(i, dir)
				default:
					t.Errorf("%s is begun", i.Name)
				}
				return acted(i)
			}
			o.Record = func(r result.Trial) error {
				if name == "a record" && r.TrialName == second {
					return unix.ENOSPC
				}
				return nil
			}
			s, err := Run(t.Context(), o)
			var is *Full
			if err == nil || errors.As(err, &is) != (name == "a fault") || is != nil && is.Hint != "make room" {
				t.Errorf("%v", err)
			}
			if s.Ended != c.ended || s.Left != 20-c.ended || s.Stopped != 0 {
				t.Errorf("%+v", s)
			}
			if _, err := result.Read(filepath.Join(o.Out, first)); err != nil {
				t.Errorf("the trial that was under way: %v", err)
			}
			if name == "a verdict" {
				if err := os.Remove(filepath.Join(o.Out, second)); err != nil { // a file
					t.Error(err)
				}
			}
			o.Try, o.Record = writes, nil
			if s := mustRun(t, t.Context(), o); !s.Done() || s.Kept == 0 {
				t.Errorf("afterwards: %+v", s)
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// A try that says nothing, or two things, of its trial is no verdict.
func TestRun_NoAccount(t *testing.T) {
	one := 1.0
	for _, bad := range []result.Trial{{}, {StartedAt: time.Unix(1, 0)}, {StartedAt: time.Unix(1, 0), Reward: &one, Fault: fault("agent", "x", "task")}} {
		o := options(t, Items(specs(1), oracle, 1))
		o.Try = func(context.Context, Item, string) result.Trial { return bad }
		mustRun(t, t.Context(), o)
		got, err := result.Read(filepath.Join(o.Out, o.Items[0].Name))
		if err != nil || got.Fault == nil || got.Fault.Class != "internal" {
			t.Errorf("%+v: %v, %v", bad, got.Fault, err)
		}
	}
}

func TestShare(t *testing.T) {
	items := Items(specs(17), []result.AgentConfig{{Name: "oracle"}, {Name: "nop"}}, 3)
	for n := range 8 {
		seen, least, most := map[string]int{}, len(items), 0
		for i := range max(n, 1) {
			mine := Share(items, job.Shard{Index: i + 1, Of: n})
			least, most = min(least, len(mine)), max(most, len(mine))
			agents := map[string]int{}
			for _, m := range mine {
				seen[m.Name]++
				agents[m.Agent.Name]++
			}
			if agents["oracle"] != agents["nop"] {
				t.Errorf("%d/%d: %v", i+1, n, agents)
			}
		}
		for name, times := range seen {
			if times != 1 {
				t.Errorf("%d shards: %s is in %d", n, name, times)
			}
		}
		if len(seen) != len(items) || most-least > 2 {
			t.Errorf("%d shards: %d of %d items, %d to %d in each", n, len(seen), len(items), least, most)
		}
	}
}

// Shards in one folder make one job of it.
func TestRun_Shards(t *testing.T) {
	items := Items(specs(20), oracle, 1)
	o := options(t, items)
	o.Sleep = once
	var wg, begun sync.WaitGroup
	begun.Add(4)
	for i := range 4 {
		o := o
		o.Shard = job.Shard{Index: i + 1, Of: 4}
		mine := sync.OnceFunc(begun.Done)
		o.Try = func(ctx context.Context, i Item, dir string) result.Trial {
			mine()
			begun.Wait() // all are under way
			return writes(ctx, i, dir)
		}
		wg.Go(func() {
			if s, err := Run(t.Context(), o); err != nil || s.Trials != 5 || !s.Done() {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	wg.Wait()
	whole := options(t, items)
	mustRun(t, t.Context(), whole)
	sameLeft(t, left(t, o.Out), left(t, whole.Out))
	var a, b result.Job
	if err := errors.Join(result.ReadJob(filepath.Join(o.Out, result.ResultFile), &a), result.ReadJob(filepath.Join(whole.Out, result.ResultFile), &b)); err != nil {
		t.Fatal(err)
	}
	if a.Total != 20 || a.Stats.Completed != 20 || fmt.Sprint(a.Stats.Evals["oracle__set"]) != fmt.Sprint(b.Stats.Evals["oracle__set"]) {
		t.Errorf("%+v\n%+v", a, b)
	}
}

func TestRun_Thousand(t *testing.T) {
	o := options(t, Items(specs(1000), oracle, 1))
	o.Sleep, o.Jobs, o.Try = nil, 8, func(_ context.Context, i Item, _ string) result.Trial { return acted(i) }
	if s := mustRun(t, t.Context(), o); s.Ended != 1000 {
		t.Errorf("%+v", s)
	}
	began := time.Now()
	if s := mustRun(t, t.Context(), o); s.Kept != 1000 {
		t.Errorf("%+v", s)
	}
	t.Logf("the second run took %v", time.Since(began))
}

// What is removed and moved in a trial's folder is never another folder's, which
// a link there leads to.
func TestRun_Links(t *testing.T) {
	items := Items(specs(1), oracle, 1)
	for _, name := range []string{items[0].Name, items[0].Name + "/retries", ".rollout", "job.log"} {
		o := options(t, items)
		others := filepath.Join(t.TempDir(), "others")
		mine := filepath.Join(others, "mine")
		at := filepath.Join(o.Out, name)
		err := errors.Join(os.MkdirAll(others, 0o755), os.WriteFile(mine, []byte("mine"), 0o644), os.MkdirAll(filepath.Dir(at), 0o755))
		to := others
		if name == "job.log" {
			to = mine
		}
		if err := errors.Join(err, os.Symlink(to, at)); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: a link was taken", name)
		}
		entries, _ := os.ReadDir(others)
		if data, err := os.ReadFile(mine); err != nil || string(data) != "mine" || len(entries) != 1 {
			t.Errorf("%s: %q, %v, %d entries", name, data, err, len(entries))
		}
		// The control: without it the run goes on.
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		if s, err := Run(t.Context(), o); err != nil || !s.Done() {
			t.Errorf("%s: the control: %+v, %v", name, s, err)
		}
	}
}
