package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"golang.org/x/sys/unix"
)

// view is a folder without what .dockerignore leaves out, and with the devices
// that are not on disk.
type view struct {
	r       *rooted
	ignore  *patternmatcher.PatternMatcher // nil: nothing is left out
	judged  map[string]judgement           // of folders
	devices map[string]Special             // by path
}

// judgement is what the ignore patterns say of a path.
type judgement struct {
	out  bool
	info patternmatcher.MatchInfo
}

func newView(r *rooted, ignore []string, specials []Special) (*view, error) {
	v := &view{r: r, judged: map[string]judgement{}, devices: map[string]Special{}}
	for _, s := range specials {
		if s.Device != "" {
			v.devices[s.Path] = s
		}
	}
	if len(ignore) > 0 {
		var err error
		if v.ignore, err = newMatcher(".dockerignore", ignore); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// newMatcher reads patterns; its error names the one that is none.
func newMatcher(of string, patterns []string) (*patternmatcher.PatternMatcher, error) {
	m, err := patternmatcher.New(patterns)
	if err == nil {
		return m, nil
	}
	for _, p := range patterns {
		if _, err := patternmatcher.New([]string{p}); err != nil {
			return nil, fmt.Errorf("%s: %q is no pattern: %w", of, p, err)
		}
	}
	return nil, fmt.Errorf("%s: %w", of, err)
}

// entry describes what is at p, whether it is left out or not.
func (v *view) entry(p string) (Entry, error) {
	st, err := v.r.lstat(p)
	if errors.Is(err, fs.ErrNotExist) || err == nil && isWhiteout(st) {
		if s, ok := v.devices[p]; ok {
			return Entry{Path: p, Type: map[string]string{"c": "char", "b": "block"}[s.Device], Mode: s.Mode & 0o7777}, nil
		}
	}
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Path: p, Type: typeOf(st.Mode), Mode: st.Mode & 0o7777}
	switch e.Type {
	case "file":
		e.Size = st.Size
	case "link":
		e.Mode = 0o777
		e.Link, err = v.r.readlink(p)
	}
	return e, err
}

// typeOf names the type bits of a mode (inode(7)).
func typeOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "dir"
	case unix.S_IFLNK:
		return "link"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFCHR:
		return "char"
	case unix.S_IFBLK:
		return "block"
	}
	return "socket"
}

// look is a lookup for which what is left out does not exist.
func (v *view) look(p string) (uint32, string, error) {
	format, link, err := v.r.look(p)
	if errors.Is(err, fs.ErrNotExist) {
		if s, ok := v.devices[p]; ok {
			return map[string]uint32{"c": unix.S_IFCHR, "b": unix.S_IFBLK}[s.Device], "", nil
		}
	}
	if err != nil || v.ignore == nil {
		return format, link, err
	}
	seen, err := v.seen(p, format == unix.S_IFDIR)
	if err == nil && !seen {
		err = inside("stat", p, fs.ErrNotExist)
	}
	return format, link, err
}

// names lists a folder of the disk with its devices, left out or not.
func (v *view) names(dir string) ([]string, error) {
	names, err := v.r.names(dir)
	if err != nil {
		return nil, err
	}
	for p := range v.devices {
		if path.Dir(p) == dir && !slices.Contains(names, path.Base(p)) {
			names = append(names, path.Base(p))
		}
	}
	slices.Sort(names)
	return names, nil
}

// judge says what the ignore patterns mean for p, given what they mean for the
// folders above.
func (v *view) judge(p string) (judgement, error) {
	if v.ignore == nil || p == "." {
		return judgement{}, nil
	}
	dir := path.Dir(p)
	above, ok := v.judged[dir]
	if !ok {
		var err error
		if above, err = v.judge(dir); err != nil {
			return judgement{}, err
		}
		v.judged[dir] = above
	}
	out, info, err := v.ignore.MatchesUsingParentResults(p, above.info)
	if err != nil {
		return judgement{}, fmt.Errorf(".dockerignore: %w", err)
	}
	return judgement{out, info}, nil
}

// seen reports whether p is part of the context: it is not left out, or it is
// a folder with something below that is not.
func (v *view) seen(p string, dir bool) (bool, error) {
	j, err := v.judge(p)
	if err != nil || !j.out {
		return err == nil, err
	}
	if !dir || !exceptionBelow(v.ignore, p) {
		return false, nil
	}
	names, err := v.r.names(p)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		below := path.Join(p, name)
		st, err := v.r.lstat(below)
		if err != nil {
			return false, err
		}
		if ok, err := v.seen(below, st.Mode&unix.S_IFMT == unix.S_IFDIR); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// exceptionBelow reports whether an exception (!pattern) may bring back
// something below dir: only then need a folder that is left out be read.
func exceptionBelow(m *patternmatcher.PatternMatcher, dir string) bool {
	return m.Exclusions() && reachesBelow(m, dir, true)
}

// reachesBelow reports whether one of the patterns, or of the exceptions, may
// match below dir.
func reachesBelow(m *patternmatcher.PatternMatcher, dir string, exceptions bool) bool {
	for _, p := range m.Patterns() {
		if p.Exclusion() != exceptions {
			continue
		}
		text := strings.TrimSuffix(strings.TrimSuffix(p.String(), "/**"), "/*")
		if strings.ContainsAny(text, `*[]?^\`) || under(text, dir) || under(dir, text) {
			return true
		}
	}
	return false
}

// filter is what --parents and --exclude let through, by paths relative to the
// folder that is copied.
type filter struct {
	include, exclude *patternmatcher.PatternMatcher
}

func newFilter(include string, parents bool, exclude []string) (*filter, error) {
	f := &filter{}
	var err error
	if parents {
		if f.include, err = newMatcher("--parents", []string{include}); err != nil {
			return nil, err
		}
	}
	if len(exclude) > 0 {
		if f.exclude, err = newMatcher("--exclude", exclude); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// passed is what a filter said of a folder, which what is below it inherits.
type passed struct{ include, exclude patternmatcher.MatchInfo }

// judge reports whether rel passes, and whether anything below it may.
func (f *filter) judge(rel string, above passed) (in, below bool, p passed, err error) {
	in, below = true, true
	if f.include != nil {
		if in, p.include, err = f.include.MatchesUsingParentResults(rel, above.include); err != nil {
			return false, false, p, fmt.Errorf("matching %q: %w", rel, err)
		}
		below = in || reachesBelow(f.include, rel, false)
	}
	if f.exclude != nil {
		out, info, err := f.exclude.MatchesUsingParentResults(rel, above.exclude)
		if err != nil {
			return false, false, p, fmt.Errorf("--exclude: %w", err)
		}
		p.exclude = info
		if out {
			in, below = false, below && f.exclude.Exclusions()
		}
	}
	return in, below, p, nil
}

// below lists what of the folder at p is in the view and passes the filter. A
// folder that does not pass is listed if something below it does.
func (v *view) below(p string, f *filter) ([]Entry, error) {
	var list []Entry
	// walk lists the folder at rel, and says whether it listed anything that the view has.
	var walk func(rel string, above passed) (seen bool, err error)
	walk = func(rel string, above passed) (seen bool, err error) {
		names, err := v.names(path.Join(p, rel))
		if err != nil {
			return false, err
		}
		for _, name := range names {
			rel := path.Join(rel, name)
			at := path.Join(p, rel)
			in, deeper, pass, err := f.judge(rel, above)
			if err != nil {
				return false, err
			}
			j, err := v.judge(at)
			if err != nil {
				return false, err
			}
			if !in && !deeper {
				continue
			}
			e, err := v.entry(at)
			if err != nil {
				return false, err
			}
			e.Path = rel
			if e.Type != "dir" {
				if in && !j.out {
					list = append(list, e)
					seen = true
				}
				continue
			}
			if j.out && !exceptionBelow(v.ignore, at) {
				continue
			}
			e.Way = !in
			mark := len(list)
			list = append(list, e)
			some, err := walk(rel, pass)
			if err != nil {
				return false, err
			}
			if !some && in {
				if some, err = v.seen(at, true); err != nil {
					return false, err
				}
			}
			if !some {
				list = list[:mark]
			}
			seen = seen || some
		}
		return seen, nil
	}
	_, err := walk("", passed{})
	return list, err
}
