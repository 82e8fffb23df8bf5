package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// Case is one file of cases/, read.
type Case struct {
	Name  string // of the file, without .txtar
	Shows string // the comment: what it is about

	Dockerfile []byte // nil if setup makes it
	Setup      string
	Args       Args

	On     string         // what Want is relative to: "base" (all bases have the same files) or "scratch"
	Want   string         // lines as Diff gives them
	Config string         // as Canonical gives it; "" together with an Error
	Error  *regexp.Regexp // nil if the build succeeds
	// Differs is why ours is not what BuildKit gives; "" if it is. docs/sifbuild.md says it, too.
	Differs string
}

// Args is what a case is built with besides its context.
type Args struct {
	Target   string            // "" is the last stage
	Build    map[string]string // --build-arg
	Contexts map[string]string // folders by name, relative to the context folder
	Secrets  map[string]string // files by id, relative to the context folder
	Platform string            // "" is this machine's
	File     string            // of the Dockerfile, relative to the context folder
	Serve    string            // a folder, relative to the context folder, that Serve serves
	MTimes   bool              // want has times of files
}

// Load reads every case of a folder, sorted by name.
func Load(dir string) ([]Case, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no case in %s", dir)
	}
	var all []Case
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		c, err := Parse(strings.TrimSuffix(filepath.Base(name), ".txtar"), data)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Parse reads one case. What it does not know is an error, and so is a case
// without an expectation, or with two.
func Parse(name string, data []byte) (Case, error) {
	c, err := parse(name, data)
	if err != nil {
		return Case{}, err
	}
	switch {
	case c.Error == nil && (c.Config == "" || c.On == ""):
		return Case{}, fmt.Errorf("case %s: neither want and config nor error: run the oracle", name)
	case c.Error != nil && (c.Config != "" || c.On != ""):
		return Case{}, fmt.Errorf("case %s: an error, and yet want or config", name)
	}
	return c, nil
}

// ParseUnmeasured is Parse for the oracle: the expectation may be missing.
func ParseUnmeasured(name string, data []byte) (Case, error) { return parse(name, data) }

func parse(name string, data []byte) (Case, error) {
	archive := txtar.Parse(data)
	c := Case{Name: name, Shows: strings.TrimSpace(string(archive.Comment))}
	fail := func(format string, a ...any) (Case, error) {
		return Case{}, fmt.Errorf("case %s: %w", name, fmt.Errorf(format, a...))
	}
	if c.Shows == "" || strings.Contains(c.Shows, "\n") {
		return fail("the comment at the top is not one line")
	}
	seen := map[string]bool{}
	for _, f := range archive.Files {
		if seen[f.Name] {
			return fail("two files %s", f.Name)
		}
		seen[f.Name] = true
		var err error
		switch f.Name {
		case "Dockerfile":
			c.Dockerfile = f.Data
		case "setup":
			c.Setup = string(f.Data)
		case "args":
			c.Args, err = parseArgs(string(f.Data))
		case "want":
			var first string
			first, c.Want, _ = strings.Cut(string(f.Data), "\n")
			if c.On = strings.TrimPrefix(first, "on "); c.On != "base" && c.On != "scratch" {
				return fail("want begins with %q, neither \"on base\" nor \"on scratch\"", first)
			}
		case "config":
			c.Config = string(f.Data)
		case "error":
			first, _, _ := strings.Cut(string(f.Data), "\n")
			if first == "" {
				return fail("error begins with an empty line, which every error matches")
			}
			c.Error, err = regexp.Compile(first)
		case "differs":
			c.Differs = strings.TrimSpace(string(f.Data))
		default:
			return fail("a file %s, which means nothing", f.Name)
		}
		if err != nil {
			return fail("%s: %w", f.Name, err)
		}
	}
	if c.Dockerfile == nil && c.Setup == "" {
		return fail("neither Dockerfile nor setup")
	}
	if c.Args.File == "" {
		c.Args.File = "Dockerfile"
	}
	return c, nil
}

func parseArgs(text string) (Args, error) {
	a := Args{Build: map[string]string{}, Contexts: map[string]string{}, Secrets: map[string]string{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		name, rest, pair := strings.Cut(value, "=")
		switch key {
		case "target":
			a.Target = value
		case "arg":
			a.Build[name] = rest
		case "context", "secret":
			if !pair || !filepath.IsLocal(rest) {
				return Args{}, fmt.Errorf("%q is not %s=NAME=PATH with a path inside the context", line, key)
			}
			if key == "context" {
				a.Contexts[name] = rest
			} else {
				a.Secrets[name] = rest
			}
		case "platform":
			a.Platform = value
		case "file":
			a.File = value
		case "serve":
			if a.Serve = value; !filepath.IsLocal(value) {
				return Args{}, fmt.Errorf("%q is not serve=FOLDER with a folder inside the context", line)
			}
		case "mtimes":
			a.MTimes = true
		default:
			return Args{}, fmt.Errorf("%q means nothing", line)
		}
	}
	return a, nil
}

// MakeContext makes the context of the case in dir, which has to be empty.
func (c Case) MakeContext(ctx context.Context, dir string) error {
	if c.Setup != "" {
		cmd := exec.CommandContext(ctx, "/bin/sh", "-euc", "umask 022\n"+c.Setup)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "TZ=UTC",
			"TAR_OPTIONS=--owner=root:0 --group=root:0"} // unless a case says otherwise, whoever runs it
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("case %s: setup: %w: %s", c.Name, err, bytes.TrimSpace(out))
		}
	}
	file := filepath.Join(dir, c.Args.File)
	if _, err := os.Lstat(file); c.Dockerfile == nil || !errors.Is(err, fs.ErrNotExist) {
		return nil // setup made it, or the case is about there being none
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, c.Dockerfile, 0o644)
}

// Serve serves the folder of args' serve, inside the context folder dir, over
// HTTP on this machine, and puts where into the build argument URL, without a
// slash at the end. There is nothing to stop if the case serves nothing.
func (c Case) Serve(dir string) (stop func(), err error) {
	if c.Args.Serve == "" {
		return func() {}, nil
	}
	root, err := os.OpenRoot(filepath.Join(dir, c.Args.Serve))
	if err != nil {
		return nil, fmt.Errorf("case %s: %w", c.Name, err)
	}
	server := httptest.NewServer(http.FileServerFS(root.FS()))
	c.Args.Build["URL"] = server.URL
	return func() {
		server.Close()
		root.Close()
	}, nil
}
