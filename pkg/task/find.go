package task

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// Selection says which tasks are taken.
type Selection struct {
	Include []string // patterns of path.Match on names; none: all
	Exclude []string
	// PerDataset and Limit are how many tasks are taken at most, of each dataset
	// and of all; 0 is no limit. They are the first by name, unless Seed, which
	// is not 0 then, draws them.
	PerDataset int
	Limit      int
	Seed       uint64
	// Stdin is what the argument "-" reads: a line is a JSON record whose field
	// "task" is a task folder, as sifbuild prints them, or a path.
	Stdin io.Reader
}

// Find reads the tasks that the arguments name: task folders, folders of task
// folders, or "-" for records. Links are followed. It returns them by source,
// name and path, each once, with what was passed over. No task at all is an
// error that says why, and so is an argument that names nothing.
func Find(args []string, sel Selection) (tasks []Task, skipped []Skipped, err error) {
	if len(args) == 0 {
		return nil, nil, errors.New("name task folders, or folders of task folders")
	}
	for _, p := range slices.Concat(sel.Include, sel.Exclude) {
		if _, err := path.Match(p, ""); err != nil {
			return nil, nil, fmt.Errorf("the pattern %q: %w", p, err)
		}
	}
	dirs, skipped, err := folders(args, sel)
	if err != nil {
		return nil, nil, err
	}
	looked := len(dirs) + len(skipped)
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !sel.takes(filepath.Base(dir)) })
	unwanted := looked - len(dirs) - len(skipped)

	tasks = make([]Task, len(dirs))
	reasons := make([]string, len(dirs))
	var g errgroup.Group
	g.SetLimit(16) // shared storage answers slowly, and many at once
	for i, dir := range dirs {
		g.Go(func() error { tasks[i], reasons[i] = load(dir); return nil })
	}
	_ = g.Wait()
	for i, reason := range reasons {
		if reason != "" {
			skipped = append(skipped, Skipped{dirs[i], reason, true})
			tasks[i].Dir = ""
		}
	}
	tasks = slices.DeleteFunc(tasks, func(t Task) bool { return t.Dir == "" })
	slices.SortFunc(tasks, order)
	slices.SortFunc(skipped, func(a, b Skipped) int { return cmp.Compare(a.Path, b.Path) })
	if len(tasks) == 0 {
		return nil, skipped, none(args, looked, unwanted, skipped)
	}
	return sel.some(tasks), skipped, nil
}

func order(a, b Task) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir))
}

// takes says whether the patterns take a task of this name.
func (s Selection) takes(name string) bool {
	match := func(p string) bool { ok, _ := path.Match(p, name); return ok }
	return (len(s.Include) == 0 || slices.ContainsFunc(s.Include, match)) && !slices.ContainsFunc(s.Exclude, match)
}

// some takes as many of the tasks, which are in order, as the limits allow.
func (s Selection) some(tasks []Task) []Task {
	if s.Seed != 0 {
		r := rand.New(rand.NewPCG(s.Seed, 0))
		r.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	}
	if s.PerDataset > 0 {
		of := map[string]int{}
		tasks = slices.DeleteFunc(tasks, func(t Task) bool { of[t.Source]++; return of[t.Source] > s.PerDataset })
	}
	if s.Limit > 0 && len(tasks) > s.Limit {
		tasks = tasks[:s.Limit]
	}
	slices.SortFunc(tasks, order)
	return tasks
}

// folders are the task folders that the arguments lead to, absolute.
func folders(args []string, sel Selection) (dirs []string, skipped []Skipped, err error) {
	seen := map[[2]uint64]string{}
	take := func(dir string, st fs.FileInfo) {
		sys := st.Sys().(*syscall.Stat_t)
		id := [2]uint64{sys.Dev, sys.Ino}
		if first, ok := seen[id]; ok {
			if first != dir {
				skipped = append(skipped, Skipped{Path: dir, Reason: "it is the same folder as " + first})
			}
			return
		}
		seen[id] = dir
		dirs = append(dirs, dir)
	}
	visit := func(arg string) error {
		dir, err := filepath.Abs(arg)
		if err != nil {
			return err
		}
		st, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("looking for tasks: %w", err)
		}
		if !st.IsDir() {
			return fmt.Errorf("looking for tasks: %s is not a folder: name the folder of a task, or one of tasks", arg)
		}
		if isTask(dir) {
			take(dir, st)
			return nil
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("looking for tasks: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() && e.Type()&fs.ModeSymlink == 0 {
				continue // a README beside the tasks
			}
			p := filepath.Join(dir, e.Name())
			st, err := os.Stat(p)
			switch {
			case err != nil:
				skipped = append(skipped, Skipped{Path: p, Reason: why(err)})
			case !st.IsDir():
			case !isTask(p):
				skipped = append(skipped, Skipped{Path: p, Reason: noTask(p)})
			default:
				take(p, st)
			}
		}
		return nil
	}
	for _, arg := range args {
		if arg != "-" {
			if err := visit(arg); err != nil {
				return nil, nil, err
			}
			continue
		}
		named, err := records(sel.Stdin)
		if err != nil {
			return nil, nil, err
		}
		for _, dir := range named {
			if err := visit(dir); err != nil {
				skipped = append(skipped, Skipped{Path: dir, Reason: strings.TrimPrefix(err.Error(), "looking for tasks: ")})
			}
		}
	}
	return dirs, skipped, nil
}

// noTask says why a folder is no task.
func noTask(dir string) string {
	reason := "it has no task.toml, and no Dockerfile at its top"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return why(err)
	}
	if folder(dir, "environment") != "" {
		return "it has a folder environment but no task.toml"
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isTask(filepath.Join(dir, e.Name())) }) {
		reason += "; it holds tasks itself: name it on the command line"
	}
	return reason
}

// records reads folders from lines: JSON records of these tools, which have the
// field task, or plain paths.
func records(r io.Reader) (dirs []string, err error) {
	if r == nil {
		return nil, errors.New("BUG: - without a standard input")
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		if strings.HasPrefix(line, "{") {
			var rec struct{ Task string }
			if err := json.Unmarshal([]byte(line), &rec); err != nil {
				return nil, fmt.Errorf("standard input, line %d: %w", n, err)
			}
			if rec.Task == "" {
				continue // a record of something else, such as a summary
			}
			line = rec.Task
		}
		dirs = append(dirs, line)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading tasks from standard input: %w", err)
	}
	named := map[string]bool{}
	for _, dir := range dirs {
		named[filepath.Clean(dir)] = true
	}
	// What is made of a part of a task, such as the image of its verifier, is no task.
	return slices.DeleteFunc(dirs, func(dir string) bool {
		up := filepath.Dir(filepath.Clean(dir))
		for ; up != filepath.Dir(up) && !named[up]; up = filepath.Dir(up) {
		}
		return named[up]
	}), nil
}

// ErrNames is that no task has a name that is wanted.
var ErrNames = errors.New("no task has a name that --include and --exclude leave")

// none says in one line why there is no task.
func none(args []string, looked, unwanted int, skipped []Skipped) error {
	if unwanted > 0 && unwanted == looked {
		return fmt.Errorf("%w, of %d in %s", ErrNames, looked, strings.Join(args, " "))
	}
	folders := "folders"
	if looked == 1 {
		folders = "folder"
	}
	text := fmt.Sprintf("no task found in %s: looked at %d %s", strings.Join(args, " "), looked, folders)
	if unwanted > 0 {
		text += fmt.Sprintf("; %d have names that --include and --exclude leave out", unwanted)
	}
	first := map[string]string{}
	count := map[string]int{}
	var reasons []string
	for _, s := range skipped {
		if count[s.Reason]++; count[s.Reason] == 1 {
			reasons, first[s.Reason] = append(reasons, s.Reason), s.Path
		}
	}
	slices.SortStableFunc(reasons, func(a, b string) int { return count[b] - count[a] })
	for _, r := range reasons[:min(3, len(reasons))] {
		text += "; " + filepath.Base(first[r])
		if n := count[r] - 1; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		text += ": " + r
	}
	return errors.New(text)
}
