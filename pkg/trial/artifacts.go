package trial

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/spec"
)

// kept is an artifact as it was, for a verifier in a container of its own.
type kept struct {
	source string
	stream string // a file on the host: the tar stream of it
}

// manifest is a line of artifacts/manifest.json, as Harbor has it.
type manifest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Type        string `json:"type"`
	Status      string `json:"status"`
}

// errNone is of an artifact that the container has not, or not as a file or a
// folder: it is for the tests to say what that means.
var errNone = errors.New("there is no such file or folder")

// artifacts brings what is to be kept, best effort, to a folder of the host's. If
// it goes on from there, as streams in the scratch folder, what is there and
// cannot be had is an error: the tests would judge without it.
func (r *run) artifacts(ctx context.Context, list []spec.Artifact, dir string, streams bool) (all []kept, failed error) {
	lines := []manifest{}
	for i, a := range list {
		if ctx.Err() != nil || !alive(r.box) {
			break
		}
		line := manifest{Source: a.Source, Destination: path.Join("artifacts", a.Destination), Type: "directory", Status: "ok"}
		at := a.Source
		if !path.IsAbs(at) {
			at = path.Join(r.box.Workdir(), at)
		}
		// Into a folder of its own first: what is cut short is no artifact.
		tmp := filepath.Join(dir, fmt.Sprintf(".%d", i))
		err := os.Mkdir(tmp, 0o755)
		base := path.Base(at)
		var also *tar.Writer
		one := kept{at, filepath.Join(r.Box.Scratch, fmt.Sprintf("artifact-%d.tar", i))}
		if err == nil && streams {
			var f *os.File
			if f, err = os.Create(one.stream); err == nil {
				defer f.Close()
				also = tar.NewWriter(f)
			}
		}
		if err == nil {
			err = r.has(ctx, at)
		}
		if err == nil {
			err = get(ctx, r.box, box.Agent, path.Dir(at), []string{base}, func(in io.Reader) error {
				t, err := unpack(in, tmp, artifactsMost, func(name string) bool { return excluded(a.Exclude, base, name) }, also)
				r.left("artifact "+a.Source, t)
				return err
			})
		}
		if err == nil && also != nil {
			err = also.Close()
		}
		if err == nil {
			err = settle(tmp, base, dir, a, &line)
		}
		if err != nil && ctx.Err() == nil {
			line.Status = "failed"
			r.say("artifact %s: %v", a.Source, err)
		}
		if err != nil && streams && !errors.Is(err, errNone) && failed == nil {
			failed = r.unhad(fmt.Errorf("the artifact %s: %w", a.Source, err))
		}
		if err := os.RemoveAll(tmp); err != nil {
			r.warn("%v", err)
		}
		if streams && line.Status != "failed" {
			all = append(all, one)
		}
		lines = append(lines, line)
	}
	if err := result.WriteJSON(filepath.Join(dir, "manifest.json"), lines); err != nil {
		r.warn("the list of artifacts: %v", err)
	}
	return all, failed
}

// has says errNone of a path that is not in the agent's container.
func (r *run) has(ctx context.Context, at string) error {
	exit, err := r.box.Run(ctx, box.Command{Domain: box.Agent, Argv: []string{"/bin/sh", "-c", `[ -e "$1" ] || [ -L "$1" ]`, "sh", at}, Timeout: harness}, session.Streams{})
	if err == nil && exit.Code == 1 {
		return errNone
	}
	return err
}

// unhad is why something could not be had from a container. What its files are
// like, many or changing, and that the agent's domain is lost while the container
// is there, is the doing of who was in it.
func (r *run) unhad(err error) error {
	var said *session.Error
	var lost *box.Error
	switch {
	case errors.Is(err, errTooMuch) || errors.As(err, &said) && alive(r.box):
		return Faultf("verify", "download_failed", r.blame(), "", "%v", err)
	case errors.As(err, &lost) && alive(r.box):
		return Faultf("verify", lost.Class, r.blame(), lost.Hint, "%v", err)
	}
	return err
}

// settle moves an artifact from where it was unpacked to its place.
func settle(tmp, base, dir string, a spec.Artifact, line *manifest) error {
	at := filepath.Join(tmp, base)
	st, err := os.Lstat(at)
	if err != nil {
		return errNone
	}
	if !st.IsDir() {
		line.Type = "file"
	} else if entries, err := os.ReadDir(at); err == nil && len(entries) == 0 {
		line.Status = "empty"
	}
	to := filepath.Join(dir, filepath.FromSlash(a.Destination))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%w: artifacts/%s is another's", errNone, a.Destination)
	}
	return os.Rename(at, to)
}

// excluded says whether a pattern leaves out a path below an artifact, as tar's
// --exclude does: the name of any part, or the path.
func excluded(patterns []string, base, name string) bool {
	rel := strings.TrimPrefix(strings.TrimPrefix(name, base), "/")
	for _, p := range patterns {
		if ok, _ := path.Match(p, rel); ok {
			return true
		}
		for _, one := range strings.Split(rel, "/") {
			if ok, _ := path.Match(p, one); ok {
				return true
			}
		}
	}
	return false
}
