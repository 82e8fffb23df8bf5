package wanted

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fence/pkg/internal/readfile"
	"fence/pkg/wheel"
)

// fileMax is how large a script or a list may be, in bytes.
const fileMax = 4 << 20

var (
	comment    = regexp.MustCompile(`(^|\s)#.*$`)
	perPackage = regexp.MustCompile(`\s--(hash|config-settings?|global-option|build-option|install-option)[ =].*$`)
	variable   = regexp.MustCompile(`\$\{[A-Z0-9_]+\}`)
)

// requirements reads a requirements file (pip's documentation, Requirements
// File Format). include reads another that it names.
func (c command) requirements(shown string, text []byte, s *wheel.Set, into *[]wheel.Requirement, include func(name string, into *[]wheel.Requirement)) {
	lines := strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	for n := 0; n < len(lines); n++ {
		first, line := n+1, lines[n]
		for strings.HasSuffix(line, "\\") && !strings.HasPrefix(strings.TrimSpace(line), "#") && n+1 < len(lines) {
			n++
			line = strings.TrimSuffix(line, "\\") + " " + lines[n]
		}
		where := c.where
		if shown != "" {
			where = fmt.Sprintf("%s, %s:%d", c.where, shown, first)
		}
		if c.where == "" {
			where = fmt.Sprintf("%s:%d", shown, first)
		}
		line = strings.TrimSpace(strings.TrimPrefix(comment.ReplaceAllString(line, ""), "\ufeff"))
		switch {
		case line == "":
			continue
		case variable.MatchString(line):
			c.result.skip(where, line, "it depends on a variable")
			continue
		case strings.HasPrefix(line, "-"):
			c.option(where, line, s, into, include)
			continue
		}
		c.requirement(where, strings.TrimSpace(perPackage.ReplaceAllString(line, "")), into)
	}
}

// option reads a line of a requirements file that is an option.
func (c command) option(where, line string, s *wheel.Set, into *[]wheel.Requirement, include func(name string, into *[]wheel.Requirement)) {
	var args []argument
	for i, f := range strings.Fields(line) {
		if i == 0 && strings.HasPrefix(f, "--") {
			if name, value, ok := strings.Cut(f, "="); ok {
				args = append(args, argument{text: name}, argument{text: strings.Trim(value, `"'`)})
				continue
			}
		}
		args = append(args, argument{text: strings.Trim(f, `"'`)})
	}
	c.where, c.text = where, line
	p := c.options(args, pipFlags, -1)
	switch {
	case p.err != nil:
		c.skip("%v", p.err)
		return
	case len(p.words) > 0:
		c.skip("it is more than one option")
		return
	}
	if p.set.Index != "" && isWeb(p.set.Index) {
		s.Index = p.set.Index
	}
	for _, u := range p.set.ExtraIndexes {
		if isWeb(u) {
			s.ExtraIndexes = append(s.ExtraIndexes, u)
		}
	}
	for _, u := range p.set.FindLinks {
		if isWeb(u) {
			s.FindLinks = append(s.FindLinks, u)
		}
	}
	s.Pre = s.Pre || p.set.Pre
	for _, f := range p.files {
		include(f.text, into)
	}
	for _, f := range p.constraints {
		include(f.text, &s.Constraints)
	}
}

// File reads a requirements file of this machine.
func File(name string) ([]wheel.Set, []wheel.Unread, error) {
	r := &result{}
	c := command{walker: &walker{result: r}}
	s := wheel.Set{From: []string{name}}
	text, err := readfile.Regular(name, fileMax)
	if err != nil {
		return nil, nil, fmt.Errorf("reading requirements: %w", err)
	}
	read := map[string]bool{filepath.Clean(name): true}
	var open func(dir string, depth int) func(string, *[]wheel.Requirement)
	open = func(dir string, depth int) func(string, *[]wheel.Requirement) {
		return func(name string, into *[]wheel.Requirement) {
			if !filepath.IsAbs(name) {
				name = filepath.Join(dir, name)
			}
			if read[name] {
				return
			}
			read[name] = true
			text, err := readfile.Regular(name, fileMax)
			if err == nil && depth > deepest {
				err = fmt.Errorf("%s: requirement files within requirement files are not followed further", name)
			}
			if err != nil {
				r.skip(name, "", "%v", err)
				return
			}
			c.requirements(name, text, &s, into, open(filepath.Dir(name), depth+1))
		}
	}
	c.requirements(name, text, &s, &s.Requirements, open(filepath.Dir(name), 1))
	if len(s.Requirements) > 0 {
		r.sets = append(r.sets, s)
	}
	return r.sets, r.unread, nil
}

// List reads a dataset's list of the wheels that its tasks need: a file with a
// name, a path or an address of one on each line (also as sha256sum(1) prints
// them), or a folder of wheels. It gives the same versions, whatever machine
// the listed wheels are for, each without what it requires: the list is meant
// to be whole. A wheel for one Python is wanted for that Python.
func List(name string) ([]wheel.Set, []wheel.Unread, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the list of wheels: %w", err)
	}
	var lines []string
	if st.IsDir() {
		entries, err := os.ReadDir(name)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the list of wheels: %w", err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				lines = append(lines, e.Name())
			}
		}
	} else {
		text, err := readfile.Regular(name, fileMax)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the list of wheels: %w", err)
		}
		lines = strings.Split(string(text), "\n")
	}
	r := &result{}
	by := map[string]map[string]wheel.Requirement{} // by Python, by requirement
	for i, line := range lines {
		fields := strings.Fields(comment.ReplaceAllString(line, ""))
		if len(fields) == 0 {
			continue
		}
		file := path.Base(strings.TrimPrefix(fields[len(fields)-1], "*"))
		file, _, _ = strings.Cut(file, "#")
		if st.IsDir() && !strings.HasSuffix(file, ".whl") && !isSdist(file) {
			continue
		}
		where := fmt.Sprintf("%s:%d", name, i+1)
		if st.IsDir() {
			where = filepath.Join(name, file)
		}
		project, version, tags, err := wheel.Name(file)
		if err != nil {
			if isSdist(file) {
				r.skip(where, file, "it is a source distribution: only wheels are installed without a build")
			} else {
				r.skip(where, line, "%v", err)
			}
			continue
		}
		python := ""
		if tag := tags[0]; strings.HasPrefix(tag.Python, "cp3") && tag.ABI != "abi3" && len(tag.Python) > 3 {
			python = "3." + tag.Python[3:]
		}
		if by[python] == nil {
			by[python] = map[string]wheel.Requirement{}
		}
		q := wheel.Requirement{Project: project, Spec: "==" + version}
		by[python][q.String()] = q
	}
	// Two versions of a project cannot be in one set: as many sets as it takes.
	for _, python := range slices.Sorted(maps.Keys(by)) {
		var sets []wheel.Set
		for _, key := range slices.Sorted(maps.Keys(by[python])) {
			q := by[python][key]
			i := slices.IndexFunc(sets, func(s wheel.Set) bool {
				return !slices.ContainsFunc(s.Requirements, func(o wheel.Requirement) bool { return o.Project == q.Project })
			})
			if i < 0 {
				i, sets = len(sets), append(sets, wheel.Set{NoDeps: true, Python: python, From: []string{name}})
			}
			sets[i].Requirements = append(sets[i].Requirements, q)
		}
		r.sets = append(r.sets, sets...)
	}
	if len(r.sets) == 0 && len(r.unread) == 0 {
		return nil, nil, fmt.Errorf("reading the list of wheels: %s has no name of a wheel", name)
	}
	return r.sets, r.unread, nil
}

func isSdist(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".zip") || strings.HasSuffix(name, ".tar.bz2")
}
