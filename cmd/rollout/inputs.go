package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/harbor"
	"fence/pkg/result"
	"fence/pkg/sif"
	"fence/pkg/spec"
	"fence/pkg/task"
	"fence/pkg/taskflags"
)

// selectFlags are those that choose tasks, as sifbuild has them.
func selectFlags() []urfave.Flag {
	return append(taskflags.All(),
		&urfave.StringFlag{Name: "image", Usage: "the image of every task is `FILE.sif`"},
		&urfave.StringFlag{Name: "sif-cache", Aliases: []string{"cache"}, Usage: "find images in `DIR`, a cache of sifbuild's or of Harbor's; or the variable SIF_CACHE", EnvVars: []string{"SIF_CACHE"}},
		&urfave.StringSliceFlag{Name: "pass-env", Usage: "tasks may ask for your variable `NAME` (${NAME} in task.toml)"},
		&urfave.StringFlag{Name: "security-why", Usage: "run tasks about security and exploits too, because of `TEXT`"},
	)
}

// item is a task with all that is known of it before a trial.
type item struct {
	spec.Spec
	image     string
	verifiers map[string]string // images of verifiers that have their own, by step
	broken    *result.Fault     // why no trial of it can begin: it has no image
}

// inputs reads the tasks that the arguments name, and finds their images. What
// is passed over has a reason each.
func inputs(ctx context.Context, c *urfave.Context, args []string) ([]item, []task.Skipped, error) {
	for _, name := range []string{"per-dataset", "limit"} {
		if n := c.Int(name); n < 0 {
			return nil, nil, cli.Usagef("--"+name+" 10", "--%s: %d is no number of tasks", name, n)
		}
	}
	find, err := newFinder(c)
	if err != nil {
		return nil, nil, err
	}
	var lines []byte
	if slices.Contains(args, "-") {
		if lines, err = readAll(ctx, os.Stdin); err != nil {
			return nil, nil, err
		}
		find.records(lines)
	}
	if len(args) == 1 && args[0] == "-" && len(bytes.TrimSpace(lines)) == 0 {
		return nil, nil, cli.Usagef("of a pipe, what stands before rollout says why", "no task: standard input had no line")
	}
	tasks, skipped, err := taskflags.Find(c, args, bytes.NewReader(lines), "a task is a folder with task.toml, instruction.md, environment/ and tests/test.sh")
	if err != nil {
		return nil, skipped, err
	}
	pass := c.StringSlice("pass-env")
	getenv := func(name string) (string, bool) {
		if !slices.Contains(pass, name) {
			return "", false
		}
		return os.LookupEnv(name)
	}
	var items []item
	for _, t := range tasks {
		s, err := spec.Load(t, getenv)
		var no *spec.Refused
		switch {
		case errors.As(err, &no):
			reason := no.Reason
			if no.Advice != "" {
				reason += " (" + no.Advice + ")"
			}
			skipped = append(skipped, task.Skipped{Path: t.Dir, Reason: reason, Task: true})
			continue
		case err != nil:
			skipped = append(skipped, task.Skipped{Path: t.Dir, Reason: err.Error(), Task: true})
			continue
		case s.NeedsWhy != "" && c.String("security-why") == "":
			skipped = append(skipped, task.Skipped{Path: t.Dir, Reason: s.NeedsWhy + ": the fence is no virtual machine (--security-why TEXT runs it)", Task: true})
			continue
		}
		it := item{Spec: s, verifiers: map[string]string{}}
		it.image, it.broken = find.image(t)
		for step, e := range s.Separate() {
			if it.broken == nil {
				it.verifiers[step], it.broken = find.separate(it, e)
			}
		}
		items = append(items, it)
	}
	if len(items) == 0 {
		return nil, skipped, cli.Usagef("the reasons are above", "no task is left: %d are skipped", len(skipped))
	}
	return items, skipped, nil
}

// inputMost is more than the lines of any number of tasks have.
const inputMost = 64 << 20

// readAll reads standard input, which may stay open: until a signal comes.
func readAll(ctx context.Context, in io.Reader) ([]byte, error) {
	type read struct {
		data []byte
		err  error
	}
	done := make(chan read, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(in, inputMost+1))
		if len(data) > inputMost {
			err = fmt.Errorf("more than %d MiB are no lines of tasks", inputMost>>20)
		}
		done <- read{data, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, cli.Usagef("", "standard input: %w", r.err)
		}
		return r.data, nil
	case <-ctx.Done():
		return nil, &cli.Error{Code: cli.Unknown, Err: errors.New("stopped while reading the tasks; nothing was run")}
	}
}

// finder knows where images are.
type finder struct {
	one   string // of all
	cache string
	index map[string][]harbor.Entry // by task
	told  map[string]told           // by the task's folder: records of sifbuild's
}

// told is what a sifbuild.image record says.
type told struct {
	Task  string `json:"task"`
	Image string `json:"image"`
	Fault *struct {
		Class   string `json:"class"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
		Retry   bool   `json:"retry"`
	} `json:"fault"`
}

func newFinder(c *urfave.Context) (*finder, error) {
	f := &finder{told: map[string]told{}, index: map[string][]harbor.Entry{}}
	var err error
	if name := c.String("image"); name != "" {
		if f.one, err = filepath.Abs(name); err != nil {
			return nil, err
		}
		img, err := sif.Open(f.one)
		if err == nil {
			err = img.Runs(runtime.GOARCH)
			img.Close()
		}
		if err != nil {
			return nil, cli.Usagef("a SIF that sifbuild or apptainer made for this machine", "--image: %w", err)
		}
	}
	if name := c.String("sif-cache"); name != "" {
		if f.cache, err = filepath.Abs(name); err != nil {
			return nil, err
		}
		x, err := harbor.ReadIndex(f.cache)
		if err != nil {
			return nil, &cli.Error{Code: cli.Usage, Err: err}
		}
		for _, e := range x.Images {
			f.index[e.Task] = append(f.index[e.Task], e)
		}
	}
	return f, nil
}

// records notes the images that lines of sifbuild's name.
func (f *finder) records(lines []byte) {
	in := bufio.NewScanner(bytes.NewReader(lines))
	in.Buffer(nil, len(lines)+1)
	for in.Scan() {
		var t told
		if json.Unmarshal(in.Bytes(), &t) == nil && t.Task != "" {
			f.told[filepath.Clean(t.Task)] = t
		}
	}
}

func noImage(class, cause, hint, format string, a ...any) *result.Fault {
	return &result.Fault{Phase: "build", Class: class, Cause: cause, Message: fmt.Sprintf(format, a...), Hint: hint}
}

// asBuilt is what a command of sifbuild's lacks that rollout cannot know.
const asBuilt = "(and the --base that others were built with)"

// image is where a task's image is, or why it has none.
func (f *finder) image(t task.Task) (string, *result.Fault) {
	if f.one != "" {
		return f.one, nil
	}
	if r, ok := f.told[filepath.Clean(t.Dir)]; ok && (r.Image != "" || r.Fault != nil) {
		if r.Fault != nil {
			cause := "task"
			if r.Fault.Retry { // a network, a disk, the end of a job
				cause = "infra"
			}
			return "", noImage("image_missing", cause, r.Fault.Hint, "sifbuild made no image: %s: %s", r.Fault.Class, r.Fault.Message)
		}
		return r.Image, nil
	}
	if f.cache == "" {
		return "", noImage("image_missing", "infra", "sifbuild build "+t.Dir+" --cache DIR "+asBuilt+", and then --sif-cache DIR", "its image is not known: no cache of images is named")
	}
	n, err := harbor.Name(t)
	if err != nil {
		return "", noImage("image_missing", "infra", "", "%v", err)
	}
	for _, e := range f.index[n.Task] {
		if e.Environment == n.Environment && e.Dockerfile == n.Dockerfile && e.DockerImage == t.DockerImage {
			if image := filepath.Join(f.cache, e.Image); isFile(image) {
				return image, nil
			}
		}
	}
	for _, name := range n.Files {
		if image := filepath.Join(f.cache, name); isFile(image) {
			return image, nil
		}
	}
	// Harbor's workers take any file of the right digest; all files of the
	// environment's folder count before the Dockerfile alone.
	for _, name := range n.Files {
		i := strings.LastIndex(name, "-")
		if i < 0 {
			continue
		}
		if found, _ := filepath.Glob(filepath.Join(globbed(f.cache), "*"+globbed(name[i:]))); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", noImage("image_missing", "infra", "sifbuild build "+t.Dir+" --cache "+f.cache+" "+asBuilt, "its image is not in %s", f.cache)
}

// separate is the image of a verifier that has its own container.
func (f *finder) separate(it item, e *spec.Environment) (string, *result.Fault) {
	t, own := e.Grader()
	if !own {
		return it.image, nil
	}
	only := *f
	only.one = "" // it stands for the tasks' own images
	image, missing := only.image(t)
	if missing != nil {
		missing.Message = "of its verifier: " + missing.Message
	}
	return image, missing
}

func isFile(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.Mode().IsRegular()
}

// readFile reads a file that a flag names. No signal would end the open of a
// FIFO, nor memory the reading of a device.
func readFile(name string) ([]byte, error) {
	st, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular() || st.Size() > 1<<20:
		return nil, fmt.Errorf("%s is not a regular file of at most 1 MiB", name)
	}
	return os.ReadFile(name)
}

// globbed is a name that filepath.Glob takes as it is.
func globbed(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

func saySkipped(w io.Writer, skipped []task.Skipped) {
	for _, s := range skipped {
		fmt.Fprintf(w, "rollout: skipped %s: %s\n", cli.Printable(s.Path), cli.Printable(s.Reason))
	}
}

// sayWarnings says what is not as it was meant in task files, each thing once.
func sayWarnings(w io.Writer, items []item) {
	const most = 10
	var texts []string
	of := map[string][]string{}
	for _, it := range items {
		for _, text := range it.Warnings {
			if of[text] == nil {
				texts = append(texts, text)
			}
			of[text] = append(of[text], it.Task.Name)
		}
	}
	for i, text := range texts {
		if i == most {
			fmt.Fprintf(w, "rollout: and %d more warnings: they are in the records\n", len(texts)-most)
			return
		}
		who := of[text][0]
		if n := len(of[text]) - 1; n > 0 {
			who += fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(w, "rollout: warning: %s: %s\n", cli.Printable(who), cli.Printable(text))
	}
}

// sayCPUs says that tasks ask for more CPUs than there are for each of so many
// trials at a time. Nobody is kept to what it asks for.
func sayCPUs(w io.Writer, items []item, atATime, cpus int) {
	var asks []item
	for _, it := range items {
		if it.Environment.CPUs*float64(atATime) > float64(cpus) {
			asks = append(asks, it)
		}
	}
	if len(asks) > 0 {
		fmt.Fprintf(w, "rollout: warning: %d tasks, such as %s with cpus = %v, ask for more than there is of %d CPUs with %d trials at a time, which share them: -n\n",
			len(asks), cli.Printable(asks[0].Task.Name), asks[0].Environment.CPUs, cpus, atATime)
	}
}

// sayMissing says what to type for images that are not there.
func sayMissing(w io.Writer, items []item) {
	alike := map[string]int{} // one hint is enough for those that are missed in one place
	for _, it := range items {
		if it.broken != nil {
			alike[it.broken.Message]++
		}
	}
	said := 0
	for _, it := range items {
		if it.broken == nil || alike[it.broken.Message] == 0 {
			continue
		}
		if said++; said > 3 {
			fmt.Fprintf(w, "rollout: and more tasks have no image\n")
			return
		}
		who := it.Task.Name
		if n := alike[it.broken.Message] - 1; n > 0 {
			who += fmt.Sprintf(" and %d more", n)
		}
		alike[it.broken.Message] = 0
		fmt.Fprintf(w, "rollout: %s: %s\n", cli.Printable(who), cli.Printable(it.broken.Message))
		if it.broken.Hint != "" {
			fmt.Fprintf(w, "hint: %s\n", cli.Printable(it.broken.Hint))
		}
	}
}
