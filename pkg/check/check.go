// Package check looks at an image without running it: whether it is for this
// architecture, has the commands that it must have, can be read by an ordinary
// user, and does not give away what a task's agent must not see. It reads what
// the image says and believes none of it.
package check

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"fence/pkg/sif"
)

// Schema names the record that a Report is.
const Schema = "sifbuild.check/v1"

// Options say what the image must be. The zero value asks for nothing but an
// image that is sound in itself.
type Options struct {
	Arch    string   // as Go writes it; "" is the image's own
	Require []string // commands: names that PATH finds, or absolute paths
	Tasks   []Task   // those that use the image: their tests and solutions must not be in it
	// Leftovers are paths that only a build needs; nil is DefaultLeftovers.
	Leftovers []string
}

// Task is what an agent must not see of a task.
type Task struct {
	Name     string
	Tests    string // folder, "" for none
	Solution string // folder, "" for none
}

// DefaultLeftovers are what sifbuild itself brings into a root while it builds.
var DefaultLeftovers = []string{".fence", "etc/apt/apt.conf.d/zz-sifbuild", "dev/pipes"}

// Level says what a finding means: a fault is an image that must not be used.
type Level string

const (
	Fault   Level = "fault"
	Warning Level = "warning"
	Note    Level = "note"
)

// Finding is one thing about an image. Classes are: damaged, arch, command,
// shell, leftover, copy, git, unreadable, setuid.
type Finding struct {
	Class string   `json:"class"`
	Level Level    `json:"level"`
	Text  string   `json:"text"`            // one line
	Hint  string   `json:"hint,omitempty"`  // what to do
	Count int      `json:"count,omitempty"` // how many paths
	Paths []string `json:"paths,omitempty"` // the first of them, absolute

	untold bool
}

// Report is all that Run found.
type Report struct {
	Schema   string    `json:"schema"`
	Image    string    `json:"image"`
	Arch     string    `json:"arch"`
	Bytes    int64     `json:"bytes"`    // of the image
	Unpacked int64     `json:"unpacked"` // of the files in it
	Files    int       `json:"files"`    // of any type
	Findings []Finding `json:"findings"`
}

// OK says whether the image can be used.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level == Fault })
}

// Untold says that what stands against the image is only that something could
// not be looked at.
func (r Report) Untold() bool {
	untold := false
	for _, f := range r.Findings {
		if f.Level == Fault && !f.untold {
			return false
		}
		untold = untold || f.untold
	}
	return untold
}

// shown is how many paths of a finding are written out.
const shown = 10

func (r *Report) add(class string, level Level, paths []string, hint, format string, args ...any) {
	f := Finding{Class: class, Level: level, Text: fmt.Sprintf(format, args...), Hint: hint, Count: len(paths)}
	for _, p := range paths[:min(shown, len(paths))] {
		f.Paths = append(f.Paths, "/"+p)
	}
	r.Findings = append(r.Findings, f)
}

// Run looks at an image. What it cannot look at is a finding.
func Run(img *sif.Image, o Options) Report {
	r := Report{Schema: Schema, Image: img.Path, Arch: img.Arch, Bytes: img.Size, Findings: []Finding{}}
	arch := cmp.Or(o.Arch, img.Arch)
	if err := img.Runs(arch); err != nil {
		r.add("arch", Fault, nil, "", "%v", err)
	}
	t := tree{}
	err := img.Walk(func(e sif.Entry) error {
		t[e.Path] = e
		r.Files++
		r.Unpacked += e.Size
		return nil
	})
	if err != nil {
		r.add("damaged", Fault, nil, "build it again, or copy it again from where it is whole", "%v", err)
		return r
	}
	r.commands(t, img, arch, o.Require)
	r.leftovers(t, o.Leftovers)
	r.places(t)
	r.copies(t, o.Tasks)
	r.git(t)
	r.census(t)
	return r
}

// tree is every path of an image.
type tree map[string]sif.Entry

// sorted are the paths, in order.
func (t tree) sorted() []string {
	all := make([]string, 0, len(t))
	for p := range t {
		all = append(all, p)
	}
	slices.Sort(all)
	return all
}

// resolve follows the links in a path, all inside the image.
func (t tree) resolve(name string) (sif.Entry, bool) {
	at, rest, links := ".", strings.Split(path.Clean("/"+name), "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		e, ok := t[next]
		if !ok {
			return sif.Entry{}, false
		}
		if e.Mode&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > 40 { // as the kernel, path_resolution(7)
			return sif.Entry{}, false
		}
		if strings.HasPrefix(e.Link, "/") {
			at = "."
		}
		rest = append(strings.Split(e.Link, "/"), rest...)
	}
	e, ok := t[at]
	return e, ok
}

// head reads the first bytes of a file.
func head(e sif.Entry, n int64) ([]byte, error) {
	r, err := e.Open()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, n))
}

func (r *Report) leftovers(t tree, names []string) {
	if names == nil {
		names = DefaultLeftovers
	}
	var there []string
	for _, p := range names {
		if _, ok := t[p]; ok {
			there = append(there, p)
		}
	}
	if len(there) > 0 {
		r.add("leftover", Fault, there, "build it again; if it comes back, the Dockerfile makes these itself", "%d paths are there that only a build has", len(there))
	}
}

// census says what an ordinary user, who is not the files' owner, will meet.
func (r *Report) census(t tree) {
	var closed, setuid []string
	for _, p := range t.sorted() {
		e := t[p]
		switch {
		case e.Mode.IsRegular() && e.Mode.Perm()&0o004 == 0, e.Mode.IsDir() && e.Mode.Perm()&0o005 != 0o005:
			closed = append(closed, p)
		}
		if e.Mode.IsRegular() && e.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 && e.Mode.Perm()&0o111 != 0 {
			setuid = append(setuid, p)
		}
	}
	if len(closed) > 0 {
		r.add("unreadable", Note, closed, "apptainer exec --fakeroot --ignore-fakeroot-command can read them; so can trials",
			"%d files and folders are closed to everybody but root: a plain apptainer exec cannot read them", len(closed))
	}
	if len(setuid) > 0 {
		r.add("setuid", Note, setuid, "", "%d programs are setuid or setgid, which has no effect in a container", len(setuid))
	}
}
