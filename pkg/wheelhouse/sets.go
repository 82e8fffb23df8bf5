package wheelhouse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"fence/pkg/wheel"
)

// set fetches one set, and has each new wheel looked at before it counts.
func (h *house) set(ctx context.Context, s wheel.Set, r *Set) error {
	t := h.o.Target
	t.Python = s.Python
	s.Requirements = slices.DeleteFunc(slices.Clone(s.Requirements), func(q wheel.Requirement) bool { return !t.Applies(q, nil) })
	faults := len(h.r.Faults)
	asked := s
	for range 10 { // what pip has left out may again require something
		if len(s.Requirements) == 0 {
			break
		}
		files, err := h.fetch(ctx, s, t)
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := h.take(file, t, r); err != nil {
				return err
			}
		}
		if s.NoDeps || len(h.r.Faults) > faults {
			break
		}
		more := h.lacking(asked, t, r)
		if len(more) == 0 {
			break
		}
		s.Requirements = append(slices.Clone(asked.Requirements), more...)
	}
	if !s.NoDeps && len(h.r.Faults) == faults {
		for _, q := range h.lacking(asked, t, r) {
			h.fault(Dependency, q.String(), "a wheel of the set requires it, and it is not there", r.From)
		}
	}
	if s.Universal && len(h.r.Faults) == faults {
		if err := h.elsewhere(ctx, s, t, r); err != nil {
			return err
		}
	}
	slices.Sort(r.Files)
	r.Complete = len(h.r.Faults) == faults
	return nil
}

// elsewhere fetches what the wheels of a set require on other platforms only. uv
// installs none of it for the target, but adds nothing to a project before it
// has a version of each.
func (h *house) elsewhere(ctx context.Context, s wheel.Set, t wheel.Target, r *Set) error {
	for _, file := range slices.Clone(r.Files) {
		for _, d := range h.checked[file].Requires {
			if !t.AppliesElsewhere(d, nil) {
				continue
			}
			d.Marker = ""
			one := s
			one.Requirements, one.NoDeps = []wheel.Requirement{d}, true
			files, _, err := h.pip.download(ctx, one, t)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				h.r.Notes = append(h.r.Notes, fmt.Sprintf("%s requires %s on other platforms, of which there is no wheel for this one: uv add may refuse it", file, d))
				continue
			}
			for _, f := range files {
				if err := h.take(f, t, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// take looks at a wheel that pip has put into the stage, and gives it its place.
func (h *house) take(file string, t wheel.Target, r *Set) error {
	staged, final := filepath.Join(h.pip.stage, file), filepath.Join(h.o.Dir, wheelsName, file)
	if known := h.r.wheel(file); known != nil && known.Source != h.source {
		switch same, err := sameBytes(staged, final, known.SHA256); {
		case err != nil:
			return fmt.Errorf("looking at %s: %w", file, err)
		case !same:
			h.fault(wheel.Corrupt, file, whose(h.source)+" gives other bytes under that name than "+whose(known.Source)+", and there can be one", r.From)
			return os.Remove(staged)
		case h.source == "":
			known.Source = ""
		}
	} else if known == nil {
		w, err := wheel.Check(staged, t)
		if f, ok := wheel.IsFault(err); ok {
			h.fault(f.Class, file, f.Text, r.From)
			return os.Remove(staged)
		}
		if err != nil {
			return fmt.Errorf("looking at %s: %w", file, err)
		}
		// pip's copy is not on the disk yet, for all we know.
		if err := settle(staged, final); err != nil {
			return err
		}
		h.checked[file] = w
		e := entry(w)
		e.Source = h.source
		h.r.Wheels = append(h.r.Wheels, e)
		h.r.Fetched++
		for _, text := range w.Odd {
			h.r.Notes = append(h.r.Notes, fmt.Sprintf("%s requires %q, which is no version of an index: it is left to pip", file, text))
		}
		h.o.Say("fetched " + file)
	}
	if !slices.Contains(r.Files, file) {
		r.Files = append(r.Files, file)
	}
	return nil
}

// sameBytes says whether what pip has is what is there, whose digest is known.
func sameBytes(staged, final, sha256 string) (bool, error) {
	a, err := os.Stat(staged)
	if err != nil {
		return false, err
	}
	if b, err := os.Stat(final); err == nil && os.SameFile(a, b) {
		return true, nil
	}
	sum, err := digest(staged)
	return sum == sha256, err
}

func whose(source string) string {
	if source == "" {
		return "the index of the node's pip"
	}
	return source
}

// settle gives a whole file its name; it keeps the staged one, for pip.
func settle(staged, final string) error {
	f, err := os.Open(staged)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Link(staged, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the wheelhouse: %w", err)
	}
	return nil
}

// lacking is what the wheels of a set require on the target and none of them is.
// pip judges markers by the Python that it runs on, not by the target's, and
// then leaves something out.
func (h *house) lacking(s wheel.Set, t wheel.Target, r *Set) (more []wheel.Requirement) {
	have := map[string]wheel.Wheel{}
	for _, file := range r.Files {
		w, ok := h.checked[file]
		if !ok {
			var err error
			if w, err = wheel.Check(filepath.Join(h.o.Dir, wheelsName, file), t); err != nil {
				continue
			}
			h.checked[file] = w
		}
		have[w.Project] = w
	}
	extras := map[string][]string{}
	var visit func(q wheel.Requirement)
	visit = func(q wheel.Requirement) {
		w, there := have[q.Project]
		if !there || !q.Allows(w.Version) {
			if !slices.ContainsFunc(more, func(m wheel.Requirement) bool { return m.String() == q.String() }) {
				more = append(more, q)
			}
			return
		}
		old, seen := extras[q.Project]
		extras[q.Project] = slices.Compact(slices.Sorted(slices.Values(slices.Concat(old, q.Extras))))
		if seen && len(extras[q.Project]) == len(old) {
			return
		}
		for _, d := range w.Requires {
			if t.Applies(d, extras[q.Project]) {
				d.Marker = ""
				visit(d)
			}
		}
	}
	for _, q := range s.Requirements {
		if t.Applies(q, nil) {
			q.Marker = ""
			visit(q)
		}
	}
	return more
}
