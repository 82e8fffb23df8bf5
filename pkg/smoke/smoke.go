// Package smoke starts an image once, the way a trial will: under Apptainer as
// an ordinary user, with nothing of the site in it and every command behind
// fence. It shows that the image starts, and that what its commands meet is
// what its configuration says.
//
// The image is not trusted: it runs behind the fence, with no network, for a
// bounded time, and nothing of it stays.
package smoke

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/apptainer"
)

// Timeout is how long one start may take. Where it works it takes less than a
// second; shared storage and a busy node take their time.
const Timeout = 3 * time.Minute

// Image is what is started, and what must be so then.
type Image struct {
	Path    string // of the SIF
	Config  v1.Config
	Shell   bool     // whether it has /bin/sh: without one it is only started
	Require []string // commands
}

// Tools are the node's.
type Tools struct {
	Apptainer string // absolute path
	Fence     string // absolute path
	Scratch   string // an empty folder on a disk of this node; the caller removes it
}

// Failure is an image that does not start, or is not what it says.
type Failure struct {
	What []string // a clause each
	Said string   // what Apptainer, the fence and the image printed, the end of it
}

func (f *Failure) Error() string { return strings.Join(f.What, "; ") }

// Run starts the image. A *Failure is the image's answer; warnings are what a
// person may want to know of an image that can be used. Any other error is
// of this node.
func Run(ctx context.Context, t Tools, img Image) (warnings []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("it has not ended after %v", Timeout))
	defer cancel()
	argv, env, err := container(t, img.Path)
	if err != nil {
		return nil, err
	}
	inside := []string{"/.fence/fence", "--version"}
	facts := ""
	if img.Shell {
		inside, facts = []string{"/bin/sh", "-s"}, script(img)
	}
	// The status line, descriptor 3, is written when the fence is up and before
	// the command starts: without it nothing ran.
	argv = slices.Concat(argv, []string{"/.fence/fence", "--status-fd", "3", "--"}, inside)

	statusR, statusW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer statusR.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.ExtraFiles = []*os.File{statusW}
	out, said := &apptainer.Tail{Most: 1 << 20}, &apptainer.Tail{Most: 16 << 10}
	end, err := apptainer.Run(ctx, cmd, apptainer.Start{Text: facts, Out: out, Said: said, Given: []io.Closer{statusW}})
	status, _ := io.ReadAll(io.LimitReader(statusR, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", t.Apptainer, err)
	}
	if cause := context.Cause(ctx); cause != nil && end != nil {
		if parent := ctx.Err(); errors.Is(parent, context.Canceled) {
			return nil, cause
		}
		return nil, &Failure{[]string{cause.Error()}, said.String()}
	}
	var fence struct {
		Schema     string
		DroppedEnv []string `json:"dropped_env"`
	}
	if json.Unmarshal(status, &fence) != nil || fence.Schema != "fence.status/v1" {
		return nil, &Failure{[]string{"nothing ran in it: " + apptainer.LastWords(said.String(), end)}, said.String()}
	}
	if !img.Shell {
		if end != nil {
			return nil, &Failure{[]string{"the fence does not run in it: " + apptainer.LastWords(said.String(), end)}, said.String()}
		}
		return nil, nil
	}
	bad, warnings, ended := judge(img, out.String(), fence.DroppedEnv)
	if !ended || len(bad) == 0 && end != nil {
		bad = append(bad, "its shell does not run a script to the end: "+apptainer.LastWords(said.String(), end))
	}
	if len(bad) > 0 {
		return nil, &Failure{bad, said.String()}
	}
	return warnings, nil
}

// Check says why no image could be started with these, whatever image it is.
func (t Tools) Check() error {
	for _, p := range []string{t.Fence, t.Scratch} {
		if strings.ContainsAny(p, ",:") {
			return fmt.Errorf("a path with a comma or colon cannot be handed to Apptainer, which starts each new image once: %s", p)
		}
	}
	return nil
}

// container is the command line and the environment with which Apptainer
// starts an image as it does for a trial, with fence in it, read-only.
func container(t Tools, image string) (argv, env []string, err error) {
	if err := t.Check(); err != nil {
		return nil, nil, err
	}
	dir := func(name string) string { return filepath.Join(t.Scratch, name) }
	for _, name := range []string{"overlay", "tmp", "own"} {
		if err := os.Mkdir(dir(name), 0o700); err != nil {
			return nil, nil, fmt.Errorf("a folder for Apptainer: %w", err)
		}
	}
	argv = slices.Concat([]string{t.Apptainer}, apptainer.Exec(dir("overlay"), dir("tmp")),
		[]string{"--bind", t.Fence + ":/.fence/fence:ro", image})
	return argv, apptainer.Env(dir("own")), nil
}
