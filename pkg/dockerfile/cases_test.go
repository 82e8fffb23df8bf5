package dockerfile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/dockerfile"
	"fence/test/images"
)

// atRun are the cases whose error no plan can know: a command fails, a name is
// not in the image, a copy meets what another step made.
var atRun = strings.Fields(`
	add-broken add-over-file add-scratch add-through-absolute-link-out add-through-existing-link-out add-through-link-out
	chown-no-passwd copy-file-over-folder copy-folder-over-file copy-folder-over-file-inside copy-folder-over-link
	copy-link-over-folder copy-parent-is-file from-stage-dangling from-stage-missing mount-secret-required mount-ssh-required
	add-old-sparse copy-folder-over-inner-link heredoc-line mount-below-file onbuild-fails-line run-exit-126
	onbuild-fails row16-shell-pipefail row20-heredoc-shebang-fails row49-user-unknown row64-volume-absent run-exec-not-found run-fails
	add-url-checksum-wrong add-url-missing heredoc-copy-name-path run-no-shell run-not-found run-signal user-no-passwd-name user-root-unknown-name user-unknown-group workdir-below-file workdir-file
	tree-add-tar-folder-over-file tree-add-tar-link-absolute tree-add-tar-link-out tree-add-tar-to-file tree-below-file tree-dest-link-circle
	tree-file-over-folder tree-folder-over-file tree-folder-over-link tree-folder-to-file tree-from-glob-missing tree-several-bad tree-slash-on-file tree-workdir-file`)

// TestCases holds plans against what BuildKit made of the same files: whether
// there is an error, on which line, and the configuration of the image.
func TestCases(t *testing.T) {
	cases, err := images.Load("../../test/images/cases")
	if err != nil {
		t.Fatal(err)
	}
	bases, err := images.Bases()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.MakeContext(t.Context(), dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(dir, c.Args.File))
			if errors.Is(err, fs.ErrNotExist) && c.Error != nil {
				return // the case is that there is no file
			} else if err != nil {
				t.Fatal(err)
			}
			stop, err := c.Serve(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			p, err := plan(t, c, dir, data, bases)
			switch {
			case c.Error == nil && err != nil:
				t.Fatalf("%v; BuildKit builds it", err)
			case c.Error != nil && slices.Contains(atRun, c.Name):
				if err != nil {
					t.Fatalf("%v; BuildKit fails only when it runs the step", err)
				}
				return
			case c.Error != nil && err == nil:
				t.Fatalf("no error; BuildKit's matches %s (if only a step can know, the case belongs to atRun)", c.Error)
			case c.Error != nil:
				if bad := (*dockerfile.Error)(nil); !errors.As(err, &bad) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%#v is not an Error of one line", err)
				}
				if got := strings.ReplaceAll(err.Error(), dir+"/", ""); !c.Error.MatchString(got) {
					t.Errorf("%s\ndoes not match\n%s", got, c.Error)
				}
				return
			}
			if got := config(t, p.Stages[len(p.Stages)-1]); got != c.Config {
				t.Errorf("the configuration is\n%s\nand BuildKit's\n%s", got, c.Config)
			}
		})
	}
}

func plan(t *testing.T, c images.Case, dir string, data []byte, bases []images.Image) (*dockerfile.Plan, error) {
	contexts := map[string]string{}
	for name, folder := range c.Args.Contexts {
		contexts[name] = filepath.Join(dir, folder)
	}
	platform := v1.Platform{OS: "linux", Architecture: "amd64"}
	if c.Args.Platform != "" {
		p, err := v1.ParsePlatform(c.Args.Platform)
		if err != nil {
			t.Fatal(err)
		}
		platform = *p
	}
	return dockerfile.New(t.Context(), data, dockerfile.Options{
		File: filepath.Join(dir, c.Args.File), Context: dir, Contexts: contexts, Args: c.Args.Build, Target: c.Args.Target,
		Platform: platform, Build: v1.Platform{OS: "linux", Architecture: "amd64"},
		Base: func(_ context.Context, name string, _ v1.Platform) (dockerfile.Base, error) {
			for _, b := range bases {
				if b.Name == strings.TrimSuffix(name, ":latest") {
					return dockerfile.Base{Digest: "sha256:" + b.Name, Config: b.Config}, nil
				}
			}
			return dockerfile.Base{}, fmt.Errorf("%s: no such image: not found", name)
		},
	})
}

// config is a stage's configuration as an image would have it.
func config(t *testing.T, s dockerfile.Stage) string {
	t.Helper()
	data, err := json.Marshal(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	if h, ok := all["Healthcheck"].(map[string]any); ok && s.StartInterval != 0 {
		h["StartInterval"] = s.StartInterval
	}
	if data, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	text, err := images.Canonical(data)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
