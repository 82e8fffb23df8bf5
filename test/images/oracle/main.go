// Command oracle measures the cases of test/images with BuildKit and writes
// what it found into them. README.md says how to have a BuildKit.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sync/errgroup"

	"fence/test/images"
)

func main() {
	var o oracle
	cases := flag.String("cases", "test/images/cases", "the folder of the cases")
	run := flag.String("run", "", "only cases whose name matches this `regexp`")
	parallel := flag.Int("j", 2, "how many at once")
	flag.BoolVar(&o.check, "check", false, "write nothing, and fail if a case would change")
	flag.StringVar(&o.buildctl, "buildctl", "buildctl", "the program")
	flag.StringVar(&o.addr, "addr", "unix:///run/buildkit/buildkitd.sock", "where buildkitd listens")
	flag.Parse()
	if err := o.all(context.Background(), *cases, *run, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}

type oracle struct {
	buildctl, addr string
	check          bool

	scratch string   // everything temporary
	bases   []string // flags of buildctl that name the bases
	base    images.Tree
	layer   v1.Hash // of the bases, uncompressed
}

func (o *oracle) all(ctx context.Context, dir, run string, parallel int) error {
	pick, err := regexp.Compile(run)
	if err != nil {
		return err
	}
	if o.scratch, err = os.MkdirTemp("", "oracle-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.scratch)
	if err := o.prepare(); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var failed []error
	start, count := time.Now(), 0
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, name := range names {
		if !pick.MatchString(strings.TrimSuffix(filepath.Base(name), ".txtar")) {
			continue
		}
		count++
		g.Go(func() error {
			if err := o.one(ctx, name); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
			return nil
		})
	}
	_ = g.Wait() // errors are in failed
	fmt.Printf("%d cases, %d not as they should be, %s\n", count, len(failed), time.Since(start).Round(time.Second))
	return errors.Join(failed...)
}

// prepare writes the bases and forgets what earlier runs left in cache mounts.
func (o *oracle) prepare() error {
	bases, err := images.Bases()
	if err != nil {
		return err
	}
	for _, base := range bases {
		dir := filepath.Join(o.scratch, base.Name)
		digest, err := base.WriteLayout(dir)
		if err != nil {
			return err
		}
		o.bases = append(o.bases,
			"--oci-layout", base.Name+"="+dir,
			"--opt", fmt.Sprintf("context:%s=oci-layout://%s@%s", base.Name, base.Name, digest))
	}
	image, err := bases[0].OCI()
	if err != nil {
		return err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	o.layer = file.RootFS.DiffIDs[0]
	if o.base, err = bases[0].Tree(); err != nil {
		return err
	}
	if out, err := exec.Command(o.buildctl, "--addr", o.addr, "prune", "--all").CombinedOutput(); err != nil {
		return fmt.Errorf("%s prune: %w: %s", o.buildctl, err, out)
	}
	return nil
}

// one measures a case and rewrites its file.
func (o *oracle) one(ctx context.Context, file string) error {
	name := strings.TrimSuffix(filepath.Base(file), ".txtar")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	c, err := images.ParseUnmeasured(name, data)
	if err != nil {
		return err
	}
	found, err := o.measure(ctx, c)
	if err != nil {
		return fmt.Errorf("case %s: %w", name, err)
	}
	archive := txtar.Parse(data)
	if archive.Files, err = found.into(archive.Files); err != nil {
		return fmt.Errorf("case %s: %w", name, err)
	}
	fresh := txtar.Format(archive)
	if bytes.Equal(fresh, data) {
		return nil
	}
	if o.check {
		return fmt.Errorf("case %s: BuildKit says something else", name)
	}
	return os.WriteFile(file, fresh, 0o644)
}

type measured struct {
	want, config string
	failure      string // lines of BuildKit's words, each with a # before it
}

// into puts what was found into the files of a case, in the place where it
// was, or at the end.
func (m measured) into(files []txtar.File) ([]txtar.File, error) {
	found := map[string]string{"want": m.want, "config": m.config}
	if m.failure != "" {
		clear(found)
	}
	var fresh []txtar.File
	expected := false
	for _, f := range files {
		switch f.Name {
		case "want", "config":
			text, ok := found[f.Name]
			if !ok {
				continue
			}
			f.Data = []byte(text)
			delete(found, f.Name)
		case "error":
			if m.failure == "" {
				return nil, errors.New("it has an error, and builds")
			}
			expected = true
			first, _, _ := strings.Cut(string(f.Data), "\n")
			f.Data = []byte(first + "\n" + m.failure)
		}
		fresh = append(fresh, f)
	}
	if m.failure != "" && !expected {
		return nil, fmt.Errorf("it does not build; if that is meant, write error:\n%s", m.failure)
	}
	for _, name := range []string{"want", "config"} {
		if text, ok := found[name]; ok {
			fresh = append(fresh, txtar.File{Name: name, Data: []byte(text)})
		}
	}
	return fresh, nil
}

func (o *oracle) measure(ctx context.Context, c images.Case) (measured, error) {
	dir, err := os.MkdirTemp(o.scratch, "case-")
	if err != nil {
		return measured{}, err
	}
	defer os.RemoveAll(dir)
	context, out := filepath.Join(dir, "context"), filepath.Join(dir, "out")
	if err := os.Mkdir(context, 0o755); err != nil {
		return measured{}, err
	}
	if err := c.MakeContext(ctx, context); err != nil {
		return measured{}, err
	}
	stop, err := c.Serve(context)
	if err != nil {
		return measured{}, err
	}
	defer stop()
	cmd := exec.CommandContext(ctx, o.buildctl, o.args(c.Args, context, out)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return measured{}, err
		}
		return measured{failure: failure(said.String())}, nil
	}
	want, config, err := o.read(out, c.Args.MTimes)
	return measured{want: want, config: config}, err
}

func (o *oracle) args(a images.Args, context, out string) []string {
	args := append([]string{"--addr", o.addr, "build", "--progress=plain", "--frontend=dockerfile.v0",
		"--local", "context=" + context, "--local", "dockerfile=" + context,
		"--output", "type=oci,tar=false,dest=" + out}, o.bases...)
	opt := func(key, value string) { args = append(args, "--opt", key+"="+value) }
	opt("filename", a.File)
	if a.Target != "" {
		opt("target", a.Target)
	}
	if a.Platform != "" {
		opt("platform", a.Platform)
	}
	for name, value := range a.Build {
		opt("build-arg:"+name, value)
	}
	for name, folder := range a.Contexts {
		args = append(args, "--local", "named-"+name+"="+filepath.Join(context, folder))
		opt("context:"+name, "local:named-"+name)
	}
	for id, file := range a.Secrets {
		args = append(args, "--secret", "id="+id+",src="+filepath.Join(context, file))
	}
	return args
}

// read reads what a build wrote.
func (o *oracle) read(dir string, mtimes bool) (want, config string, err error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", "", err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return "", "", err
	}
	if n := len(manifest.Manifests); n != 1 {
		return "", "", fmt.Errorf("BuildKit wrote %d images, not one", n)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return "", "", err
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return "", "", err
	}
	var file struct {
		Config json.RawMessage
		RootFS v1.RootFS
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return "", "", err
	}
	if config, err = images.Canonical(file.Config); err != nil {
		return "", "", err
	}
	tree, err := images.ReadImage(image)
	if err != nil {
		return "", "", err
	}
	on, base := "on scratch\n", images.Empty()
	if ids := file.RootFS.DiffIDs; len(ids) > 0 && ids[0] == o.layer {
		on, base = "on base\n", o.base
	}
	return on + images.Diff(base, tree, mtimes), config, nil
}

// failure is what BuildKit says at the end of a build that failed: the place in
// the Dockerfile, and the reason.
func failure(said string) string {
	var b strings.Builder
	for line := range strings.Lines(said) {
		line = strings.TrimRight(line, "\n")
		if place.MatchString(line) || strings.HasPrefix(line, "error: ") {
			fmt.Fprintf(&b, "# %s\n", changing.ReplaceAllString(line, "..."))
		}
	}
	return b.String()
}

var (
	place = regexp.MustCompile(`^\S+:\d+$`)
	// what differs from run to run and from machine to machine: the identity of a
	// snapshot, where things are, who answers for names, the port of Serve
	changing = regexp.MustCompile(`\b[0-9a-z]{25}(::[0-9a-z]{25})?\b|/tmp/oracle-\S+?/(context)?|\S+/cachemounts/buildkit\d+| on [0-9.]+:53\b|127\.0\.0\.1:\d+`)
)
