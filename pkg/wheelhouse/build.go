package wheelhouse

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/lockfile"
	"fence/pkg/wheel"
)

// Options say what a wheelhouse is to have.
type Options struct {
	Dir     string // made where it does not exist
	Target  wheel.Target
	Sets    []wheel.Set
	Unread  []wheel.Unread // for the record
	Offline bool           // fetch nothing, only look at what is there
	Grader  bool           // what graders need, too
	// Interpreters are folders or archives of a Python for graders, built to be
	// moved (python-build-standalone); without one for a version, uv fetches it.
	Interpreters []string
	Say          func(text string) // what a person who waits wants to know, a line; nil discards
}

const (
	wheelsName = "wheels"
	stageName  = ".stage-" // and some letters: what a killed run's pip still writes goes nowhere
	cacheName  = ".cache"
	lockName   = ".lock"
)

// house is a wheelhouse while it is being made.
type house struct {
	o       Options
	r       *Record
	argv    []string               // the node's pip
	pips    map[string]*pip        // by source
	source  string                 // of the set that is being fetched, see sourceOf
	pip     *pip                   // that of source
	stage   string                 // where things are while they are made
	checked map[string]wheel.Wheel // by file: looked at in this run
}

// Build makes or continues the wheelhouse. An error is of the folder or the
// node, or that ctx ended; what could not be had is in the record's Faults, and
// the rest is there. The record is there with an error, too, if anything was
// done.
func Build(ctx context.Context, o Options) (*Record, error) {
	if o.Say == nil {
		o.Say = func(string) {}
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if err := foreign(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, wheelsName), 0o777); err != nil {
		return nil, fmt.Errorf("making the wheelhouse: %w", err)
	}
	lock, err := lockfile.Acquire(ctx, filepath.Join(o.Dir, lockName))
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	h := &house{o: o, checked: map[string]wheel.Wheel{}}
	t := Target{Arch: o.Target.Arch, Python: o.Target.Python, Libc: o.Target.Libc.String()}
	before, err := load(o.Dir, t)
	if err != nil {
		return nil, err
	}
	h.r = &Record{Schema: Schema, Dir: o.Dir, Target: t, Wheels: []Wheel{}, Sets: []Set{}, Faults: []Fault{}, Unread: o.Unread, Notes: []string{}}
	if h.r.Unread == nil {
		h.r.Unread = []wheel.Unread{}
	}
	old, _ := filepath.Glob(filepath.Join(globbed(o.Dir), stageName+"*"))
	for _, dir := range old {
		_ = os.RemoveAll(dir)
	}
	if h.stage, err = os.MkdirTemp(o.Dir, stageName); err != nil {
		return nil, fmt.Errorf("making the wheelhouse: %w", err)
	}
	defer os.RemoveAll(h.stage)
	if err := h.inventory(ctx, before); err != nil {
		return nil, err
	}
	sets := slices.Clone(o.Sets)
	if o.Grader {
		sets = slices.Concat(sets, graderSets(o.Sets, o.Target))
	}
	for i := range sets {
		if sets[i].Python == "" {
			sets[i].Python = o.Target.Python
		}
	}
	if err := h.all(ctx, wheel.Merge(sets), before); err != nil {
		return h.r, errors.Join(err, h.r.save())
	}
	if o.Grader {
		if err := h.grader(ctx); err != nil {
			return h.r, errors.Join(err, h.r.save())
		}
	}
	if err := h.publish(); err != nil {
		return h.r, err
	}
	if len(h.r.Faults) == 0 {
		_ = os.RemoveAll(filepath.Join(o.Dir, cacheName)) // everything has its place
	}
	return h.r, h.r.save()
}

// inventory takes over what is in wheels/: what an earlier run knew must be what
// it was, and what somebody put there is looked at.
func (h *house) inventory(ctx context.Context, before *Record) error {
	entries, err := os.ReadDir(filepath.Join(h.o.Dir, wheelsName))
	if err != nil {
		return fmt.Errorf("reading the wheelhouse: %w", err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		name := e.Name()
		if strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".whl") {
			continue
		}
		file := filepath.Join(h.o.Dir, wheelsName, name)
		known := before.wheel(name)
		var bad error
		if known != nil {
			sum, err := digest(file)
			if err != nil {
				return fmt.Errorf("reading the wheelhouse: %w", err)
			}
			if sum == known.SHA256 {
				h.r.Wheels = append(h.r.Wheels, *known)
				continue
			}
			bad = &wheel.Fault{Class: wheel.Corrupt, Text: "its bytes are not those that were there before"}
		} else {
			t := h.o.Target
			t.Python = h.pythonOf(name)
			w, err := wheel.Check(file, t)
			if err == nil {
				h.checked[name] = w
				h.r.Wheels = append(h.r.Wheels, entry(w))
				h.r.Notes = append(h.r.Notes, name+" was put into the folder by hand, and is as it must be")
				continue
			}
			bad = err
		}
		f, ok := wheel.IsFault(bad)
		if !ok {
			return fmt.Errorf("reading the wheelhouse: %w", bad)
		}
		if err := os.MkdirAll(filepath.Join(h.o.Dir, "rejected"), 0o777); err != nil {
			return err
		}
		if err := os.Rename(file, filepath.Join(h.o.Dir, "rejected", name)); err != nil {
			return err
		}
		text := f.Text + "; it is now in rejected/"
		if known == nil || h.o.Offline {
			h.fault(f.Class, name, text, nil)
		} else {
			h.r.Notes = append(h.r.Notes, fmt.Sprintf("%s: %s: %s, and is fetched again if it is wanted", name, f.Class, text))
		}
	}
	return nil
}

// pythonOf is the Python that a wheel of somebody's is for, as its name says.
func (h *house) pythonOf(file string) string {
	_, _, tags, err := wheel.Name(file)
	if err != nil {
		return h.o.Target.Python
	}
	for _, tag := range tags {
		if v, ok := strings.CutPrefix(tag.Python, "cp3"); ok && tag.ABI != "abi3" && v != "" {
			return "3." + v
		}
	}
	return h.o.Target.Python
}

func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

func entry(w wheel.Wheel) Wheel {
	return Wheel{File: w.File, Project: w.Project, Version: w.Version, Bytes: w.Bytes, SHA256: w.SHA256, RequiresPython: w.RequiresPython}
}

func (h *house) fault(class, what, text string, from []string) {
	if from == nil {
		from = []string{}
	}
	h.r.Faults = append(h.r.Faults, Fault{Class: class, What: what, Text: text, From: from})
}

// all fetches what the sets lack.
func (h *house) all(ctx context.Context, sets []wheel.Set, before *Record) error {
	var waiting []int
	for i, s := range sets {
		r := Set{ID: id(s), Python: s.Python, NoDeps: s.NoDeps, From: s.From, Files: []string{}, Requirements: []string{}}
		for _, q := range s.Requirements {
			r.Requirements = append(r.Requirements, q.String())
		}
		slices.Sort(r.Requirements)
		r.Requirements = slices.Compact(r.Requirements)
		for _, old := range before.Sets {
			if old.ID == r.ID && old.Complete && !slices.ContainsFunc(old.Files, func(f string) bool { return h.r.wheel(f) == nil }) {
				r.Files, r.Complete = old.Files, true
			}
		}
		h.r.Sets = append(h.r.Sets, r)
		if !r.Complete {
			waiting = append(waiting, i)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	if h.o.Offline {
		for _, i := range waiting {
			h.fault(Offline, strings.Join(h.r.Sets[i].Requirements, " "), "not all of it is there, and nothing is fetched", h.r.Sets[i].From)
		}
		return nil
	}
	argv, err := findPip(ctx)
	if err != nil {
		return err
	}
	for _, i := range waiting {
		for _, u := range append([]string{sets[i].Index}, slices.Concat(sets[i].ExtraIndexes, sets[i].FindLinks)...) {
			note := "asked as tasks say: " + withoutUser(u)
			if u != "" && !slices.Contains(h.r.Notes, note) {
				h.r.Notes = append(h.r.Notes, note)
			}
		}
	}
	h.argv, h.pips = argv, map[string]*pip{}
	// Those of the node's own index first: what they give has the name.
	slices.SortStableFunc(waiting, func(a, b int) int {
		return min(len(sourceOf(sets[a])), 1) - min(len(sourceOf(sets[b])), 1)
	})
	for n, i := range waiting {
		if err := h.use(sourceOf(sets[i])); err != nil {
			return fmt.Errorf("making the wheelhouse: %w", err)
		}
		h.o.Say(fmt.Sprintf("%d/%d: for Python %s: %s", n+1, len(waiting), h.r.Sets[i].Python, strings.Join(h.r.Sets[i].Requirements, " ")))
		if err := h.set(ctx, sets[i], &h.r.Sets[i]); err != nil {
			return err
		}
		if err := h.r.save(); err != nil {
			return err
		}
	}
	return nil
}

// sourceOf is where a set is fetched from, as a task says; "" is what the node's
// pip is configured with.
func sourceOf(s wheel.Set) string {
	var all []string
	for _, u := range append([]string{s.Index}, slices.Concat(s.ExtraIndexes, s.FindLinks)...) {
		if u != "" {
			all = append(all, withoutUser(u))
		}
	}
	return strings.Join(all, " ")
}

// use takes the pip for a source, with a folder of its own that has what the
// source has given before: pip takes the newest of all that it sees, and what a
// stranger's index gives under the name of a package is for those who asked
// there.
func (h *house) use(source string) error {
	h.source, h.pip = source, h.pips[source]
	if h.pip != nil {
		return nil
	}
	stage, err := os.MkdirTemp(h.stage, ".source-")
	if err == nil {
		err = os.Mkdir(filepath.Join(stage, ".tmp"), 0o777)
	}
	if err != nil {
		return err
	}
	for _, w := range h.r.Wheels {
		if w.Source == source {
			if err := os.Link(filepath.Join(h.o.Dir, wheelsName, w.File), filepath.Join(stage, w.File)); err != nil {
				return err
			}
		}
	}
	h.pip = newPip(h.argv, h.o.Dir, stage)
	h.pips[source] = h.pip
	return nil
}

// withoutUser is a URL without credentials.
func withoutUser(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	u.User = nil
	return u.String()
}

// id names a set by what it asks for.
func id(s wheel.Set) string {
	sum := sha256.Sum256([]byte(s.Key()))
	return hex.EncodeToString(sum[:6])
}
