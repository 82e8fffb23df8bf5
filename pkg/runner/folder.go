package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/lockfile"
	"fence/pkg/internal/text"
	"fence/pkg/result"
	"fence/pkg/tree"
)

// ours is a folder in the job's for what is nobody else's: locks.
const ours = ".rollout"

// jobLock is held while what is known of the whole job is looked at and written.
const jobLock = ours + "/lock"

// folder is a job folder, which several runs may share.
type folder struct {
	o   Options
	job result.Job
	out *os.File // job.log

	mu     sync.Mutex
	all    map[string]result.Tally // trials that are done, of every run
	active int

	total   []string        // names of the job's trials
	mine    map[string]bool // those of this run
	changed chan struct{}   // has one element if something is to be written
	stop    context.CancelFunc
	stopped chan struct{}
}

// Mismatch is a job folder that was begun with other settings: its trials would
// not be comparable.
type Mismatch struct {
	Out     string
	Differs []result.Difference
}

func (e *Mismatch) Error() string {
	text := e.Out + " holds trials of other settings: "
	for n, d := range e.Differs {
		if n > 0 {
			text += ", "
		}
		text += d.String()
	}
	return text
}

// openFolder makes the job folder, or takes one with the same settings.
func openFolder(ctx context.Context, o Options, mine []Item) (*folder, error) {
	if err := noLink(filepath.Join(o.Out, ours)); err != nil {
		return nil, fmt.Errorf("the job folder: %w", err)
	}
	locks := filepath.Join(o.Out, ours, "locks")
	if err := os.MkdirAll(locks, 0o755); err != nil {
		return nil, fmt.Errorf("the job folder: %w", err)
	}
	lock, err := lockfile.Acquire(ctx, filepath.Join(o.Out, jobLock))
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	sweep(o)
	config, err := jobConfig(o)
	if err != nil {
		return nil, err
	}
	if err := result.WriteJSON(filepath.Join(o.Out, result.ConfigFile), config); err != nil {
		return nil, fmt.Errorf("the job folder: %w", err)
	}
	f := &folder{o: o, all: map[string]result.Tally{}, mine: map[string]bool{}, changed: make(chan struct{}, 1), stopped: make(chan struct{})}
	for _, i := range o.Items {
		f.total = append(f.total, i.Name)
	}
	for _, i := range mine {
		f.mine[i.Name] = true
	}
	path := filepath.Join(o.Out, result.ResultFile)
	switch err := result.ReadJob(path, &f.job); {
	case errors.Is(err, fs.ErrNotExist):
		f.job = result.Job{ID: result.NewID(), StartedAt: o.Now().UTC()}
		if err := f.save(false); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	if f.out, err = os.OpenFile(filepath.Join(o.Out, result.JobLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644); err != nil {
		return nil, err
	}
	f.log("begins: %d of %d trials, %d at a time", len(mine), len(o.Items), o.Jobs)
	saving, stop := context.WithCancel(context.Background())
	f.stop = stop
	go f.saves(saving)
	return f, nil
}

// sweep removes what a run left that was killed: locks of trials that are done,
// and halves of the job's files. Those of a living one, on whatever node, are
// younger.
func sweep(o Options) {
	locks := filepath.Join(o.Out, ours, "locks")
	entries, _ := os.ReadDir(locks)
	for _, e := range entries {
		if l, _, _ := lockfile.Try(filepath.Join(locks, e.Name())); l != nil {
			l.Release()
		}
	}
	for _, name := range []string{result.ConfigFile, result.ResultFile} {
		halves, _ := filepath.Glob(filepath.Join(o.Out, "."+name+".*")) // see atomicfile.Write
		for _, half := range halves {
			if st, err := os.Lstat(half); err == nil && st.Mode().IsRegular() && o.Now().Sub(st.ModTime()) > time.Hour {
				_ = os.Remove(half) // it harms nobody
			}
		}
	}
}

// jobConfig is what the job's config.json is to be: what is there, with the
// tasks and attempts that have come to it.
func jobConfig(o Options) (result.JobConfig, error) {
	c := result.JobConfig{
		JobName: filepath.Base(o.Out), JobsDir: filepath.Dir(o.Out), Concurrent: o.Jobs, TimeoutMultiplier: 1,
		Retry: result.RetryConfig{Max: o.Retries}, Environment: o.Environment,
		Settings: append([]result.Setting{}, o.Settings...), Agents: []result.AgentConfig{}, Tasks: []result.TaskConfig{},
	}
	var was result.JobConfig
	path := filepath.Join(o.Out, result.ConfigFile)
	err := result.ReadJob(path, &was)
	begun := err == nil
	switch {
	case begun && was.Settings == nil:
		return c, fmt.Errorf("%s is of another program's job: rollout adds nothing to it", path)
	case !begun && !errors.Is(err, fs.ErrNotExist):
		return c, err
	}
	known := map[string]bool{}
	add := func(t result.TaskConfig) {
		if !known[t.Path] {
			c.Tasks = append(c.Tasks, t)
		}
		known[t.Path] = true
	}
	c.Attempts = was.Attempts
	for _, t := range was.Tasks {
		add(t)
	}
	for _, i := range o.Items {
		c.Attempts = max(c.Attempts, i.Attempt)
		add(result.TaskConfig{Path: i.Spec.Task.Dir, Source: i.Spec.Task.Source})
		if !slices.ContainsFunc(c.Agents, func(a result.AgentConfig) bool { return who(a) == who(i.Agent) }) {
			c.Agents = append(c.Agents, i.Agent)
		}
	}
	for _, s := range slices.Concat(o.Skipped, was.Skipped) {
		if !known[s.Path] { // it was mended since, or is said again
			known[s.Path] = true
			c.Skipped = append(c.Skipped, s)
		}
	}
	if begun {
		if d := result.Differs(agentSettings(was), agentSettings(c)); len(d) > 0 {
			return c, &Mismatch{o.Out, d}
		}
	}
	return c, nil
}

// agentSettings are a job's settings and who acts in it.
func agentSettings(c result.JobConfig) (all []result.Setting) {
	for _, a := range c.Agents {
		all = append(all, result.Setting{Name: "--agent", Value: who(a)})
	}
	return append(all, c.Settings...)
}

func (f *folder) dir(i Item) string { return filepath.Join(f.o.Out, i.Name) }

// lockPath is the lock of a trial.
func (f *folder) lockPath(i Item) string { return filepath.Join(f.o.Out, ours, "locks", i.Name) }

func (f *folder) try(i Item) (*lockfile.Lock, lockfile.Owner, error) {
	return lockfile.Try(f.lockPath(i))
}

func (f *folder) wait(ctx context.Context, i Item) (*lockfile.Lock, error) {
	return lockfile.Acquire(ctx, f.lockPath(i))
}

// done is the result of a trial that needs no other: nil if there is none, if it
// is not whole, a fault that is to be tried again, or if the task's folder has
// changed since.
func (f *folder) done(i Item) (t *result.Trial, changed bool) {
	is, err := result.Read(f.dir(i))
	switch {
	case err != nil || open(is.Fault):
		return nil, false
	case is.TaskChecksum != i.Spec.Checksum:
		return nil, true
	}
	return &is, false
}

// prepare makes the trial's folder as a try begins with it: empty, but for
// config.json and earlier tries that came to a result. What a killed try left is
// removed. It says which try it is.
func (f *folder) prepare(i Item) (dir string, tries int, err error) {
	dir = f.dir(i)
	earlier := filepath.Join(dir, result.RetriesFolder)
	// What is in them is moved and removed: it must not be somebody else's.
	if err := errors.Join(noLink(dir), noLink(earlier)); err != nil {
		return dir, 0, fmt.Errorf("the folder of a trial: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return dir, 0, fmt.Errorf("the folder of a trial: %w", err)
	}
	// A try is whole in retries/ with its result, which comes there last.
	for tries = 1; ; tries++ {
		if _, err := os.Lstat(filepath.Join(earlier, strconv.Itoa(tries), result.ResultFile)); err != nil {
			break
		}
	}
	_, err = result.Read(dir)
	keep := err == nil
	entries, err := os.ReadDir(dir)
	if err != nil {
		return dir, 0, err
	}
	to := filepath.Join(earlier, strconv.Itoa(tries))
	if keep {
		err = os.MkdirAll(to, 0o755)
	} else { // half of a try that was killed, and half of one that was being kept
		err = tree.RemoveAll(to)
	}
	for _, e := range entries {
		if err != nil {
			break
		}
		path := filepath.Join(dir, e.Name())
		switch {
		case e.Name() == result.RetriesFolder || keep && e.Name() == result.ResultFile:
		case keep:
			err = os.Rename(path, filepath.Join(to, e.Name()))
		default:
			err = tree.RemoveAll(path)
		}
	}
	if err == nil && keep {
		err = os.Rename(filepath.Join(dir, result.ResultFile), filepath.Join(to, result.ResultFile))
		tries++
	}
	if err == nil {
		err = result.WriteJSON(filepath.Join(dir, result.ConfigFile), f.config(i))
	}
	if err != nil {
		return dir, 0, fmt.Errorf("the folder of a trial: %w", err)
	}
	return dir, tries, nil
}

// noLink refuses a folder that is a link: what is in it is another folder's.
func noLink(dir string) error {
	if st, err := os.Lstat(dir); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s is a link; remove it, or name another folder for the results", dir)
	}
	return nil
}

func (f *folder) config(i Item) result.Config {
	return result.Config{
		Task:      result.TaskConfig{Path: i.Spec.Task.Dir, Source: i.Spec.Task.Source},
		TrialName: i.Name, TrialsDir: f.o.Out, TimeoutMultiplier: 1,
		Agent: i.Agent, Environment: f.o.Environment, JobID: f.job.ID,
	}
}

// write makes a trial done. The exception is in the result, too.
func (f *folder) write(dir string, t result.Trial) error {
	if e := t.ExceptionInfo; e != nil {
		text := e.Traceback
		if text == "" {
			text = e.Type + ": " + e.Message + "\n"
		}
		_ = os.WriteFile(filepath.Join(dir, result.ExceptionFile), []byte(text), 0o644)
	}
	return result.Write(dir, t)
}

// tally counts a trial that has its result.
func (f *folder) tally(t result.Trial) {
	f.mu.Lock()
	f.all[t.TrialName] = result.TallyOf(t)
	f.mu.Unlock()
	f.change()
}

func (f *folder) running(n int) {
	f.mu.Lock()
	f.active += n
	f.mu.Unlock()
	f.change()
}

func (f *folder) change() {
	select {
	case f.changed <- struct{}{}:
	default: // it is known
	}
}

// saves writes the job's figures when they have changed, not more than once a
// second, and less often where that takes long. What cannot be written now is
// with the next, or the last.
func (f *folder) saves(ctx context.Context) {
	defer close(f.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
		began := f.o.Now()
		_ = f.save(false)
		if f.o.Sleep(ctx, max(time.Second, 20*f.o.Now().Sub(began))) != nil {
			return
		}
	}
}

// save writes DIR/result.json, of all trials that are there, also those of
// other runs in the folder. Which they have done since is looked for; last says
// that what is known of them is looked at again, too.
func (f *folder) save(last bool) error {
	entries, err := os.ReadDir(f.o.Out)
	if err != nil {
		return err
	}
	for _, e := range entries {
		f.mu.Lock()
		_, known := f.all[e.Name()]
		f.mu.Unlock()
		if !e.IsDir() || e.Name() == ours || known && (f.mine[e.Name()] || !last) || f.mine[e.Name()] && !last {
			continue
		}
		if t, err := result.Read(filepath.Join(f.o.Out, e.Name())); err == nil && t.TrialName == e.Name() {
			f.mu.Lock()
			f.all[t.TrialName] = result.TallyOf(t)
			f.mu.Unlock()
		}
	}
	f.mu.Lock()
	total := len(f.all)
	for _, name := range f.total {
		if _, ok := f.all[name]; !ok {
			total++
		}
	}
	tallies := slices.Collect(maps.Values(f.all))
	active := f.active
	f.mu.Unlock()
	f.job.Total, f.job.UpdatedAt, f.job.FinishedAt = total, f.o.Now().UTC(), nil
	f.job.Stats = result.Count(tallies, total, active)
	if len(tallies) == total {
		f.job.FinishedAt = &f.job.UpdatedAt
	}
	return result.WriteJSON(filepath.Join(f.o.Out, result.ResultFile), f.job)
}

// close writes the last figures. Of several runs that end together the last one
// to do so sees what all have done.
func (f *folder) close(s Summary) error {
	f.stop()
	<-f.stopped
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if lock, err := lockfile.Acquire(ctx, filepath.Join(f.o.Out, jobLock)); err == nil { // else a little less is seen
		defer lock.Release()
	}
	err := f.save(true)
	f.log("ends: of %d trials %d were done before, %d are now, %d were stopped, %d not begun", s.Trials, s.Kept, s.Ended, s.Stopped, s.Left)
	return errors.Join(err, f.out.Close())
}

// log adds a line to job.log, in one write: several processes do so.
func (f *folder) log(format string, a ...any) {
	line := f.o.Now().UTC().Format(time.RFC3339) + " " + strconv.Itoa(os.Getpid()) + " " + fmt.Sprintf(format, a...)
	_, _ = f.out.WriteString(text.Printable(line) + "\n") // what matters is in the results
}

// uri is a path as file://.
func uri(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }
