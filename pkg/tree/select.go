package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// NotFoundError says that a source names nothing.
type NotFoundError struct {
	Source  string // as in the Selection
	Ignored bool   // it is there, and .dockerignore leaves it out
	Link    string // the path of a link on the way that leads to nothing inside the root, or that --parents does not follow
}

func (e *NotFoundError) Error() string {
	switch {
	case e.Ignored:
		return fmt.Sprintf("%q is left out by .dockerignore", e.Source)
	case e.Link != "":
		return fmt.Sprintf("%q not found: the link %q leads to nothing that can be copied from here", e.Source, e.Link)
	}
	return fmt.Sprintf("%q not found", e.Source)
}

// Select finds what the sources of a COPY or ADD name in the folder root, as
// BuildKit does: matches in the order of the sources, those of a pattern in the
// order of a walk. A pattern that matches nothing gives nothing, a path that is
// not there is a *NotFoundError. A link that a source names, or that leads
// there, is followed as if root were the root folder; links in a folder that is
// copied are not. What Ignore leaves out is not there, for links either.
//
// A file of which the caller may not read the bytes is an error with Hash.
// Sockets are selected, and count as empty files.
func Select(root string, s Selection) ([]Match, error) {
	r, err := openRoot(root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	v, err := newView(r, s.Ignore, s.Devices)
	if err != nil {
		return nil, err
	}
	var matches []Match
	for _, source := range s.Sources {
		found, err := v.source(source, s)
		if err != nil {
			return nil, err
		}
		matches = append(matches, found...)
	}
	if s.Hash {
		if err := hashAll(root, matches); err != nil {
			return nil, err
		}
	}
	return matches, nil
}

// source finds what one source names.
func (v *view) source(source string, s Selection) ([]Match, error) {
	pattern, include := source, ""
	if s.Parents {
		if before, after, ok := strings.Cut(source, "/./"); ok {
			pattern, include = before, after
		} else {
			pattern, include = "", source
		}
		include = relative(include)
	}
	pattern = relative(pattern)
	filter, err := newFilter(include, s.Parents, s.Exclude)
	if err != nil {
		return nil, err
	}
	paths := []string{pattern}
	if hasWildcard(pattern) {
		if paths, err = v.glob(source, pattern); err != nil {
			return nil, err
		}
	}
	var matches []Match
	for _, p := range paths {
		m, err := v.match(source, p, filter)
		if err != nil {
			return nil, err
		}
		if s.Parents && len(m.Below) == 0 && !hasWildcard(source) {
			return nil, v.missing(source, path.Join(pattern, include))
		}
		matches = append(matches, m)
	}
	return matches, nil
}

// match describes what is at p, links followed, and what filter lets through
// of a folder.
func (v *view) match(source, p string, filter *filter) (Match, error) {
	at, format, err := resolve(v.look, p, true)
	if err != nil {
		return Match{}, fmt.Errorf("%q: %w", source, err)
	}
	if format == 0 {
		return Match{}, v.missing(source, p)
	}
	entry, err := v.entry(at)
	if err != nil {
		return Match{}, err
	}
	m := Match{Source: source, Path: at, Name: path.Base(p), Entry: entry}
	m.Entry.Path = "."
	if entry.Type == "dir" {
		if m.Below, err = v.below(at, filter); err != nil {
			return Match{}, fmt.Errorf("%q: %w", source, err)
		}
	}
	return m, nil
}

// missing explains why there is nothing at p.
func (v *view) missing(source, p string) error {
	e := &NotFoundError{Source: source}
	_, onDisk, err := resolve(v.r.look, p, true)
	_, seen, err2 := resolve(v.look, p, true)
	if err == nil && err2 == nil && onDisk != 0 && seen == 0 {
		e.Ignored = true
		return e
	}
	for at := p; at != "."; at = path.Dir(at) {
		if _, format, err := resolve(v.look, at, false); err != nil || format != unix.S_IFLNK {
			continue
		}
		// It leads nowhere; or it leads there, and was not to be followed.
		if _, format, err := resolve(v.look, at, true); err == nil && (format == 0 || seen != 0) {
			e.Link = at
			break
		}
	}
	return e
}

// glob lists what pattern matches: the part before the first wildcard is
// followed, what comes after is matched against a walk that follows nothing
// and does not enter what matched.
func (v *view) glob(source, pattern string) ([]string, error) {
	prefix, rest := splitPattern(pattern)
	at, format, err := resolve(v.look, prefix, true)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", source, err)
	}
	if format == 0 {
		return nil, v.missing(source, prefix)
	}
	if _, err := path.Match(rest, ""); err != nil {
		return nil, fmt.Errorf("%q is no pattern: %w", source, err)
	}
	if format != unix.S_IFDIR {
		return nil, nil
	}
	var found []string
	parts := strings.Split(rest, "/")
	if strings.Contains(rest, "[") {
		parts = nil // a class may match a slash: every path has to be looked at
	}
	var walk func(dir, rel string, depth int) error
	walk = func(dir, rel string, depth int) error {
		names, err := v.names(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if parts != nil {
				if ok, _ := path.Match(parts[depth], name); !ok {
					continue
				}
			}
			below := path.Join(rel, name)
			matched, _ := path.Match(rest, below)
			if !matched && depth+1 == len(parts) {
				continue
			}
			format, _, err := v.look(path.Join(at, below))
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				return err
			case matched:
				found = append(found, path.Join(at, below))
			case format == unix.S_IFDIR:
				if err := walk(path.Join(at, below), below, depth+1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := walk(at, "", 0); err != nil {
		return nil, fmt.Errorf("%q: %w", source, err)
	}
	return found, nil
}

// hasWildcard reports whether BuildKit takes p for a pattern; a backslash makes
// the next byte an ordinary one.
func hasWildcard(p string) bool {
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// splitPattern cuts a pattern before its first element with a wildcard.
func splitPattern(p string) (prefix, rest string) {
	parts := strings.Split(p, "/")
	for i, part := range parts {
		if hasWildcard(part) {
			return relative(strings.Join(parts[:i], "/")), strings.Join(parts[i:], "/")
		}
	}
	return p, ""
}
