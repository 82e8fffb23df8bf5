package taint

import (
	"bufio"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// tests are what a verifier brings, by which its own changes are told from
// those of processes that the agent left.
type tests struct {
	text     string
	packages map[string]bool // that they install
}

// readTests reads all files in some folders on the host, as far as there is room.
func readTests(dirs []string) *tests {
	t := &tests{packages: map[string]bool{}}
	var all strings.Builder
	for _, dir := range dirs {
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue // what cannot be read names nothing
		}
		_ = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || all.Len() > textLimit {
				return nil
			}
			data, _ := readIn(root, p)
			t.installs(string(data), packageList.MatchString(path.Base(p)))
			all.Write(append(data, '\n'))
			return nil
		})
		root.Close()
	}
	t.text = all.String()
	return t
}

var (
	packageList    = regexp.MustCompile(`^(requirements.*\.(txt|in)|pyproject\.toml|setup\.cfg)$`)
	installCommand = regexp.MustCompile(`\b(install|uvx|--with|uv (add|run))\b(.*)`)
	installWord    = regexp.MustCompile(`[^\s"',;&|\[]+`)
	packageName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*`)
)

// installs notes what a text has installed, with pip or uv; list says that it is
// a list of packages.
func (t *tests) installs(text string, list bool) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if m := installCommand.FindStringSubmatch(line); m != nil {
			line = m[3]
		} else if !list {
			continue
		}
		for _, word := range installWord.FindAllString(line, -1) {
			if name := packageName.FindString(word); name != "" {
				t.packages[normal(name)] = true
			}
		}
	}
}

// readIn reads a file below a folder in which others may write.
func readIn(root *os.Root, p string) ([]byte, error) {
	f, err := root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe keeps nobody waiting
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, textLimit))
}

// told are the tests of this trial.
func (f *finder) told() *tests {
	if f.tests == nil {
		f.tests = readTests(f.o.Tests)
	}
	return f.tests
}

// installerLine is what the installers of uv and Rust add to start files.
var installerLine = regexp.MustCompile(`^(\.|source) "?(\$HOME|(?:/[\w.-]+)*)/\.(local/bin|cargo)/env"?$`)

// says says whether a start file or a setting has, beside what the image has in
// its place, only what installers write or the tests do: text in quotes.
func (f *finder) says(p string, k kind, now []byte) bool {
	had := map[string]bool{}
	if e, err := f.judge.image.Lookup(p); err == nil && e.Mode.IsRegular() {
		if r, err := e.Open(); err == nil {
			for s := bufio.NewScanner(r); s.Scan(); {
				had[strings.TrimSpace(s.Text())] = true
			}
		}
	}
	n := 0
	for line := range bytes.Lines(now) {
		line := strings.TrimSpace(string(line))
		switch {
		case line == "" || had[line] || installerLine.MatchString(line) || k == git && !gitCommand.MatchString(line):
			continue
		case k == git: // a command has it in another form
			_, value, _ := strings.Cut(line, "=")
			if value = strings.TrimSpace(value); value == "" || !strings.Contains(f.told().text, value) {
				return false
			}
		case !strings.Contains(f.told().text, "'"+line) && !strings.Contains(f.told().text, `"`+line):
			return false
		}
		if n++; n > enough {
			return false
		}
	}
	return true
}

// brings says whether the package whose entry points are at p is one that the
// tests install or the instruction names, or one that such a package requires.
func (f *finder) brings(p string) bool {
	folder := path.Dir(path.Dir(p))
	if f.brought[folder] == nil {
		f.brought[folder] = f.installed(folder)
	}
	return f.brought[folder][normal(packageOf(p))]
}

// installed are the names of packages that are in a folder for the tests' sake.
func (f *finder) installed(folder string) map[string]bool {
	known := map[string]bool{}
	root, err := os.OpenRoot(f.o.Upper)
	if err != nil {
		return known
	}
	defer root.Close()
	list, _ := fs.ReadDir(root.FS(), folder)
	requires := map[string][]string{}
	var next []string
	for _, e := range list {
		if !strings.HasSuffix(e.Name(), "-info") || f.texts > textsLimit {
			continue
		}
		name := packageOf(path.Join(folder, e.Name(), "x"))
		metadata, _ := readIn(root, path.Join(folder, e.Name(), "METADATA"))
		f.texts += len(metadata)
		for _, m := range requirement.FindAllSubmatch(metadata, -1) {
			if !bytes.Contains(m[2], []byte("extra")) {
				requires[normal(name)] = append(requires[normal(name)], normal(string(m[1])))
			}
		}
		if f.told().packages[normal(name)] || f.judge.names(name) {
			next = append(next, normal(name))
		}
	}
	for len(next) > 0 {
		name := next[0]
		if next = next[1:]; !known[name] {
			known[name] = true
			next = append(next, requires[name]...)
		}
	}
	return known
}

// requirement is a line of a package's METADATA
// (https://packaging.python.org/en/latest/specifications/core-metadata/).
var requirement = regexp.MustCompile(`(?m)^Requires-Dist: *([A-Za-z0-9._-]+)([^\r\n]*)`)
