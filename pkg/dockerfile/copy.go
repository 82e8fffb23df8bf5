package dockerfile

import (
	"cmp"
	_ "crypto/sha512" // for checksums
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/opencontainers/go-digest"
	mode "github.com/tonistiigi/dchapes-mode"
	"golang.org/x/sys/unix"

	"fence/pkg/internal/suggest"
	"fence/pkg/tree"
)

// copying is a COPY or ADD, its variables replaced.
type copying struct {
	instructions.SourcesAndDest
	chown, chmod  string
	link, parents bool
	exclude       []string
	add           bool
	unpack        *bool
	checksum      string
}

func (b *builder) copy(s *stage, c instruction, what copying) error {
	if err := what.check(); err != nil {
		return err
	}
	dest := what.DestPath
	if dest == "." || dest == "" {
		dest = "./"
	}
	one := Copy{Add: what.add, Chown: what.chown, Chmod: what.chmod, Parents: what.parents, Link: what.link, Exclude: what.exclude,
		Unpack: what.unpack, Checksum: what.checksum, Dest: folder(resolvePath(s.Config.WorkingDir, dest, true))}
	if n := len(what.SourcePaths) + len(what.SourceContents); n > 1 && !strings.HasSuffix(one.Dest, "/") {
		b.warn(lineOf(c.Location()), "%d sources for %s, which has no slash at the end: unless it is a folder, the last one is all that stays", n, what.DestPath)
	}
	var err error
	if len(c.from) > 0 {
		if one.From, err = c.from[0].of(s); err != nil {
			return err
		}
	}
	// The order of sources counts where they fall on each other: a step takes
	// files or URLs, and those of one kind that follow each other.
	var steps []Copy
	for _, source := range what.SourcePaths {
		u, err := remote(source, what.add)
		if err != nil {
			return err
		}
		if len(steps) == 0 || (u == nil) != (len(steps[len(steps)-1].URLs) == 0) {
			steps = append(steps, one)
		}
		last := &steps[len(steps)-1]
		if u != nil {
			last.URLs = append(last.URLs, *u)
		} else {
			last.Sources = append(last.Sources, cleanSource(source, what.parents))
		}
	}
	if len(what.SourceContents) > 0 {
		if len(steps) == 0 {
			steps = []Copy{one}
		}
		last := &steps[len(steps)-1]
		for _, f := range what.SourceContents {
			last.Inline = append(last.Inline, Inline{Path: f.Path, Data: []byte(f.Data), Mode: 0o644})
		}
	}
	for i := range steps {
		if len(steps[i].Sources) == 0 {
			steps[i].From = From{}
		} else if err := b.take(&steps[i], lineOf(c.Location()), len(c.from) == 0); err != nil {
			return err
		}
		s.add(c, Step{Copy: &steps[i]})
	}
	return nil
}

// check refuses flags that mean nothing.
func (what copying) check() error {
	if user, group, _ := strings.Cut(what.chown, ":"); what.link && what.chown != "" && (!isID(user) || group != "" && !isID(group)) {
		return advise("give numbers, or leave out --link", "--chown=%s: names are not known with --link", what.chown)
	}
	if what.chmod != "" {
		p, err := strconv.ParseUint(what.chmod, 8, 32)
		if err != nil {
			_, err = mode.Parse(what.chmod)
		}
		if err != nil || p > 0o7777 {
			return fmt.Errorf("--chmod=%s is neither an octal mode up to 7777 nor one such as u=rwX,go=rX", what.chmod)
		}
	}
	if what.checksum != "" {
		if len(what.SourcePaths) != 1 || !isHTTP(what.SourcePaths[0]) && !isGit(what.SourcePaths[0]) {
			return errors.New("--checksum is for one source, and that a URL")
		}
		if _, err := digest.Parse(what.checksum); err != nil && isHTTP(what.SourcePaths[0]) {
			return fmt.Errorf("--checksum=%s: %w", what.checksum, err)
		}
	}
	for _, p := range slices.Concat(what.SourcePaths, []string{what.DestPath}, what.exclude) {
		if strings.ContainsRune(p, 0) {
			return fmt.Errorf("%q holds a NUL byte", p)
		}
	}
	return nil
}

func isID(s string) bool {
	_, err := strconv.ParseInt(s, 10, 32)
	return err == nil || s == "root"
}

// of is the place that o means for an instruction of s.
func (o *origin) of(s *stage) (From, error) {
	if o.stage == nil {
		return o.From, nil
	}
	if o.stage.Index >= s.Index {
		return From{}, fmt.Errorf("the stage %s comes later: nothing can be taken from it yet", o.stage.label())
	}
	return From{Stage: &o.stage.Index}, nil
}

// take finds what a copy's sources name, where that can be known now.
func (b *builder) take(c *Copy, line int, context bool) error {
	if context {
		var err error
		if c.From, err = b.folder(""); err != nil {
			return err
		}
	}
	if c.From.Context == "" {
		return nil
	}
	matches, err := b.choose(c.From, tree.Selection{Sources: c.Sources, Parents: c.Parents, Exclude: c.Exclude})
	if err != nil {
		return err
	}
	c.Matches = matches
	for _, source := range c.Sources {
		if !slices.ContainsFunc(matches, func(m tree.Match) bool { return m.Source == source }) {
			b.warn(line, "%s matches nothing in %s", source, cmp.Or(strings.TrimPrefix(c.From.Context, b.contexts[""].Context), "the context"))
		}
	}
	return nil
}

// choose lists what a folder of this machine has to give.
func (b *builder) choose(f From, s tree.Selection) ([]tree.Match, error) {
	if err := b.ctx.Err(); err != nil {
		return nil, err
	}
	s.Ignore, s.Hash = f.Ignore, true
	matches, err := tree.Select(f.Context, s)
	if missing, ok := errors.AsType[*tree.NotFoundError](err); ok {
		return nil, &advice{err, b.missingHint(f, missing)}
	}
	if err != nil {
		return nil, err
	}
	if f.Context == b.contexts[""].Context {
		for _, m := range matches {
			if m.Entry.Type != "dir" {
				b.inputs[m.Path] = true
			}
			for _, e := range m.Below {
				if e.Type != "dir" {
					b.inputs[path.Join(m.Path, e.Path)] = true
				}
			}
		}
	}
	return matches, nil
}

func (b *builder) missingHint(f From, e *tree.NotFoundError) string {
	if e.Ignored {
		return fmt.Sprintf("a line !%s at the end of that file lets it in", e.Source)
	}
	if e.Link != "" {
		return "a link is followed as if the context folder were /"
	}
	dir, name := path.Split(e.Source)
	if near := suggest.Nearest(name, namesIn(f.Context, cmp.Or(dir, "."))); near != "" {
		return "did you mean " + dir + near + "?"
	}
	return "paths are seen from the context folder, " + f.Context
}

// namesIn are the names in a folder below root; none if that cannot be read.
func namesIn(root, dir string) []string {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil
	}
	defer r.Close()
	f, err := r.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(1000)
	if err != nil {
		return nil
	}
	return names
}

// cleanSource is a source inside the folder it is taken from: nothing leads out
// of that. The pivot point of --parents stays.
func cleanSource(source string, parents bool) string {
	inside := func(p string) string { return cmp.Or(strings.TrimPrefix(path.Join("/", p), "/"), ".") }
	if parents {
		if above, below, ok := strings.Cut(source, "/./"); ok && inside(above) != "." {
			return inside(above) + "/./" + inside(below)
		}
	}
	return inside(source)
}

// folder is a cleaned destination; what ends in a slash or a dot is a folder.
func folder(p string) string {
	clean := path.Clean(p)
	if clean != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.")) {
		clean += "/"
	}
	return clean
}

// remote is the URL that source is, or nil.
func remote(source string, add bool) (*URL, error) {
	switch {
	case isGit(source) && !add:
		return nil, fmt.Errorf("%s: a git repository is no source of COPY", redact(source))
	case isGit(source):
		return nil, advise("clone it into the context and COPY it, or RUN git clone in a stage that has git", "%s: a git repository cannot be added here", redact(source))
	case isHTTP(source) && !add:
		return nil, advise("ADD takes URLs", "%s: a URL is no source of COPY", redact(source))
	case isHTTP(source):
		u, err := url.Parse(source)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("%s is not a URL", redact(source))
		}
		name := path.Base(u.Path)
		switch {
		case name == "." || name == "/":
			name = "__unnamed__"
		case name == ".." || len(name) > unix.NAME_MAX || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
			return nil, advise("RUN curl -o NAME or wget -O NAME gives it another", "%s: no file can have the name at its end", redact(source))
		}
		return &URL{URL: source, Name: name}, nil
	}
	return nil, nil
}

func redact(source string) string {
	if u, err := url.Parse(source); err == nil {
		return u.Redacted()
	}
	return source
}

var (
	protocol = regexp.MustCompile(`^[a-zA-Z0-9]+://`)
	scpStyle = regexp.MustCompile(`^[a-zA-Z0-9-_]+@[a-zA-Z0-9-.]+:`)
)

// isGit reports whether BuildKit clones source: ssh, git, user@host:path, and
// http only if the path ends in .git.
func isGit(source string) bool {
	scheme := strings.ToLower(strings.TrimSuffix(protocol.FindString(source), "://"))
	switch scheme {
	case "":
		return !strings.HasPrefix(source, "./") && !strings.HasPrefix(source, "../") && scpStyle.MatchString(source)
	case "ssh", "git":
		return true
	case "http", "https":
		u, err := url.Parse(source)
		return err == nil && strings.HasSuffix(u.Path, ".git")
	}
	return false
}

func isHTTP(source string) bool {
	return (strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://")) && !isGit(source)
}
