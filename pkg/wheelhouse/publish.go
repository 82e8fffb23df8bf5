package wheelhouse

import (
	"bufio"
	"cmp"
	"fmt"
	"html"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/wheel"
)

// publish writes what stands for all wheels together.
func (h *house) publish() error {
	slices.SortFunc(h.r.Wheels, func(a, b Wheel) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), wheel.CompareVersions(a.Version, b.Version), cmp.Compare(a.File, b.File))
	})
	h.r.Bytes = 0
	for _, w := range h.r.Wheels {
		h.r.Bytes += w.Bytes
	}
	if err := h.simple(); err != nil {
		return err
	}
	return h.locks()
}

// simple writes the wheels as an index (PEP 503). Its links are relative, so
// that the folder can be mounted anywhere.
func (h *house) simple() error {
	dir := filepath.Join(h.o.Dir, "simple")
	page := func(name string, body func(w *bufio.Writer)) error {
		return put(name, func(w io.Writer) error {
			b := bufio.NewWriter(w)
			b.WriteString("<!DOCTYPE html>\n<html><head><meta name=\"pypi:repository-version\" content=\"1.0\"></head><body>\n")
			body(b)
			b.WriteString("</body></html>\n")
			return b.Flush()
		})
	}
	projects := map[string][]Wheel{}
	var names []string
	for _, w := range h.r.Wheels {
		if projects[w.Project] == nil {
			names = append(names, w.Project)
		}
		projects[w.Project] = append(projects[w.Project], w)
	}
	for _, name := range names {
		err := page(filepath.Join(dir, name, "index.html"), func(b *bufio.Writer) {
			for _, w := range projects[name] {
				fmt.Fprintf(b, `<a href="../../%s/%s#sha256=%s"`, wheelsName, url.PathEscape(w.File), w.SHA256)
				if w.RequiresPython != "" {
					fmt.Fprintf(b, ` data-requires-python="%s"`, html.EscapeString(w.RequiresPython))
				}
				fmt.Fprintf(b, ">%s</a><br>\n", html.EscapeString(w.File))
			}
		})
		if err != nil {
			return err
		}
	}
	err := page(filepath.Join(dir, "index.html"), func(b *bufio.Writer) {
		for _, name := range names {
			fmt.Fprintf(b, "<a href=\"%s/\">%[1]s</a><br>\n", name)
		}
	})
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && projects[e.Name()] == nil {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// locks writes a lock for each set, and one for all sets of a Python:
// requirements.lock is the target's.
func (h *house) locks() error {
	dir := filepath.Join(h.o.Dir, "locks")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	whole := map[string][]Wheel{h.o.Target.Python: nil}
	keep := map[string]bool{}
	for _, s := range h.r.Sets {
		var mine []Wheel
		for _, file := range s.Files {
			if w := h.r.wheel(file); w != nil {
				mine = append(mine, *w)
			}
		}
		whole[s.Python] = append(whole[s.Python], mine...)
		about := []string{strings.Join(s.Requirements, " "), "Python " + s.Python}
		for _, from := range s.From {
			about = append(about, "for "+from)
		}
		if !s.Complete {
			about = append(about, "NOT ALL OF IT IS THERE: wheelhouse.json says what is not")
		}
		keep[s.ID+".lock"] = true
		if err := lock(filepath.Join(dir, s.ID+".lock"), about, mine); err != nil {
			return err
		}
	}
	for python, wheels := range whole {
		name := "python" + python + ".lock"
		keep[name] = true
		if python == h.o.Target.Python {
			name = "../requirements.lock"
		}
		err := lock(filepath.Join(dir, name), []string{
			fmt.Sprintf("What this wheelhouse has for Python %s, %s, %s.", python, h.r.Target.Arch, h.r.Target.Libc),
			"pip install --no-deps --no-index --find-links wheels --require-hashes -r FILE",
			"locks/ has the same for each set of requirements.",
		}, wheels)
		if err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !keep[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// lock writes wheels as a requirements file with hashes. pip takes a project
// once, so it has the newest version; one from an index that a task named only
// where there is no other. Further versions stand there as comments.
func lock(name string, about []string, wheels []Wheel) error {
	by := map[string]map[string][]Wheel{} // project, version
	for _, w := range wheels {
		if by[w.Project] == nil {
			by[w.Project] = map[string][]Wheel{}
		}
		if !slices.Contains(by[w.Project][w.Version], w) {
			by[w.Project][w.Version] = append(by[w.Project][w.Version], w)
		}
	}
	return put(name, func(w io.Writer) error {
		b := bufio.NewWriter(w)
		for _, line := range about {
			fmt.Fprintf(b, "# %s\n", oneLine(line))
		}
		for _, project := range sorted(by, strings.Compare) {
			strangers := func(version string) int {
				if slices.ContainsFunc(by[project][version], func(w Wheel) bool { return w.Source == "" }) {
					return 0
				}
				return 1
			}
			for i, version := range sorted(by[project], func(a, b string) int {
				return cmp.Or(strangers(a)-strangers(b), wheel.CompareVersions(b, a))
			}) {
				line := project + "==" + version
				files := by[project][version]
				slices.SortFunc(files, func(a, b Wheel) int { return strings.Compare(a.SHA256, b.SHA256) })
				for _, f := range files {
					line += " \\\n    --hash=sha256:" + f.SHA256
				}
				if i > 0 {
					line = "# " + strings.ReplaceAll(line, " \\\n   ", "")
				}
				fmt.Fprintln(b, line)
			}
		}
		return b.Flush()
	})
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func sorted[V any](m map[string]V, by func(a, b string) int) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, by)
	return keys
}
