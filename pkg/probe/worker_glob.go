package probe

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// listing is what a folder held when it was first asked.
type listing struct {
	entries []entry
	cut     bool // it holds more
	err     error
}

// maxListing bounds the entries of one folder that are read.
const maxListing = 50_000

// list reads a folder once. It looks at no entry.
func (s *site) list(dir string) *listing {
	s.dirsMu.Lock()
	defer s.dirsMu.Unlock()
	if l := s.dirs[dir]; l != nil {
		return l
	}
	l := &listing{}
	if s.dirs == nil {
		s.dirs = map[string]*listing{}
	}
	s.dirs[dir] = l
	fd, err := openDir(dir)
	if err != nil {
		l.err = err
		return l
	}
	defer unix.Close(fd)
	for {
		names, err := someNames(fd)
		if err != nil {
			l.err = err
			return l
		}
		if len(names) == 0 {
			return l
		}
		if l.entries = append(l.entries, names...); len(l.entries) > maxListing {
			l.cut = true
			return l
		}
	}
}

func isPattern(p string) bool { return strings.ContainsAny(p, "*?[") }

// unmatched says whether a target is a pattern that matched nothing, and not
// a file that is called like one.
func unmatched(target string) bool {
	var st unix.Stat_t
	return isPattern(target) && unix.Lstat(target, &st) == unix.ENOENT
}

// matches are the paths that a pattern matches now.
func (s *site) matches(pattern string) []string {
	paths := []string{"/"}
	for _, part := range strings.Split(strings.Trim(pattern, "/"), "/") {
		var next []string
		for _, p := range paths {
			if !isPattern(part) {
				next = append(next, path.Join(p, part))
				continue
			}
			for _, e := range s.list(p).entries {
				if ok, err := path.Match(part, e.name); ok && err == nil {
					next = append(next, path.Join(p, e.name))
				}
			}
		}
		paths = next
	}
	var out []string
	for _, p := range paths {
		var st unix.Stat_t
		if unix.Lstat(p, &st) == nil {
			out = append(out, p)
		}
	}
	return out
}

// expand is what a pattern matches now, or the pattern itself: a finding of
// its own, so that both reports have one.
func (s *site) expand(pattern string) []string {
	if !isPattern(pattern) {
		return []string{pattern}
	}
	found := s.matches(pattern)
	if len(found) == 0 {
		return []string{pattern}
	}
	return found[:min(len(found), 16)]
}

// noMatch is the finding for a pattern that matched nothing: absent only if
// the folder could be searched, and to its end.
func (s *site) noMatch(pattern string) Finding {
	dir := path.Dir(pattern[:strings.IndexAny(pattern, "*?[")] + "x")
	l := s.list(dir)
	switch {
	case l.err != nil:
		f := s.pathFinding(dir, unix.R_OK, "open", errnoOf(l.err))
		f.Evidence = "its folder: " + f.Evidence
		return f
	case l.cut:
		return Finding{Outcome: Error, Evidence: "its folder holds too many entries to be searched to the end"}
	}
	return Finding{Outcome: Absent, Evidence: "nothing of that name"}
}
