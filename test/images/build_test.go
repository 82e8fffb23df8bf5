package images

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"fence/pkg/apptainer"
	"fence/pkg/build"
	"fence/pkg/dockerfile"
	"fence/pkg/sif"
	"fence/pkg/step"
	"fence/test/bed"
)

func TestMain(m *testing.M) {
	step.Main()      // a step of a build begins as this program
	apptainer.Main() // and so does what starts Apptainer
	os.Exit(m.Run())
}

// asUser is set for the child in which an ordinary user builds.
const asUser = "IMAGES_AS_USER"

// inApptainer is the Apptainer that steps begin inside, "" if they do not.
const inApptainer = "IMAGES_IN_APPTAINER"

// Every case is built by an ordinary user without subordinate ids, and gives
// what BuildKit gave.
func TestBuild(t *testing.T) {
	if os.Getenv(asUser) == "" {
		buildAsUser(t, os.Getenv("CASES"), "")
		return
	}
	if os.Geteuid() == 0 {
		t.Fatal("not an ordinary user")
	}
	cases, err := Load("cases")
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			bad := b.try(t, c)
			switch {
			case bad == "" && c.Differs != "":
				t.Errorf("it is as BuildKit has it, and should differ: %s", c.Differs)
			case bad != "" && c.Differs == "":
				t.Error(bad)
			}
		})
	}
}

// Where steps begin inside Apptainer, the cases give the same. Without
// TEST_FULL=1 some of each kind, which is what their names begin with, stand for all.
func TestBuild_Sandbox(t *testing.T) {
	bed.Require(t, "apptainer", "site")
	pattern := os.Getenv("CASES")
	if pattern == "" && os.Getenv("TEST_FULL") == "" {
		const each = 25
		cases, err := Load("cases")
		if err != nil {
			t.Fatal(err)
		}
		var some []string
		seen := map[string]int{}
		for _, c := range cases {
			kind := strings.TrimRight(strings.Split(c.Name, "-")[0], "0123456789")
			if seen[kind]%each == 0 {
				some = append(some, c.Name)
			}
			seen[kind]++
		}
		pattern = "^(" + strings.Join(some, "|") + ")$"
	}
	buildAsUser(t, pattern, filepath.Join(bed.Dir(), "bin", "apptainer"))
}

// buildAsUser has the ordinary user run TestBuild: the cases of a pattern,
// inside an Apptainer unless that is "".
func buildAsUser(t *testing.T, cases, sandbox string) {
	t.Helper()
	bed.Require(t, "users", "images")
	fence := bed.Bin(t, "fence")
	// Static, as sifbuild is: in a root folder without a libc a step begins as this program.
	public := filepath.Join(bed.TempDir(t), "images.test")
	compile := exec.Command("go", "test", "-c", "-o", public, ".")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := bed.Command(t, public, "-test.run=^TestBuild$/"+cases, "-test.v", "-test.timeout=15m")
	if testing.Short() {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Env = append(cmd.Env, asUser+"="+fence, inApptainer+"="+sandbox, "TMPDIR="+bed.TempDir(t), "BED_DIR="+bed.Dir())
	// The checkout may lie in root's own folder.
	cmd.Dir = bed.TempDir(t)
	if err := os.CopyFS(filepath.Join(cmd.Dir, "cases"), os.DirFS("cases")); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS: TestBuild/"); n == 0 {
		t.Fatalf("no case was built\n%s", out)
	} else {
		t.Logf("%d cases", n)
	}
}

// bench is what all cases are built with.
type bench struct {
	fence string
	bases map[string]dockerfile.Base
	trees map[string]Tree
	tars  map[string]string // by digest
}

func newBench(t *testing.T) *bench {
	b := &bench{fence: os.Getenv(asUser), bases: map[string]dockerfile.Base{}, tars: map[string]string{}}
	all, err := Bases()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range all {
		oci, err := image.OCI()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := oci.Digest()
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), image.Name+".tar")
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		r := mutate.Extract(oci)
		if _, err := io.Copy(f, r); err != nil {
			t.Fatal(err)
		}
		r.Close()
		f.Close()
		b.bases[image.Name] = dockerfile.Base{Name: image.Name, Digest: digest.String(), Config: image.Config, Platform: platform}
		b.tars[digest.String()] = name
	}
	return b
}

var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

func (b *bench) Layers(_ context.Context, base dockerfile.Base) ([]step.Stream, error) {
	return []step.Stream{func() (io.ReadCloser, error) { return os.Open(b.tars[base.Digest]) }}, nil
}

func (b *bench) base(_ context.Context, name string, _ v1.Platform) (dockerfile.Base, error) {
	base, ok := b.bases[strings.TrimPrefix(strings.TrimSuffix(name, ":latest"), "docker.io/library/")]
	if !ok {
		return base, fmt.Errorf("there is no image %s", name)
	}
	return base, nil
}

// try builds a case and says how the result differs from BuildKit's.
func (b *bench) try(t *testing.T, c Case) string {
	ctx := t.Context()
	dir := t.TempDir()
	if err := c.MakeContext(ctx, dir); err != nil {
		t.Fatal(err)
	}
	o := build.Options{Cache: t.TempDir(), Scratch: t.TempDir(), Fence: b.fence, Platform: platform, Bases: b, Sandbox: os.Getenv(inApptainer), CPUs: 1, Secrets: map[string]string{}}
	d := dockerfile.Options{File: c.Args.File, Context: dir, Args: c.Args.Build, Target: c.Args.Target, Platform: platform, Build: platform, Base: b.base, Contexts: map[string]string{}}
	for name, sub := range c.Args.Contexts {
		d.Contexts[name] = filepath.Join(dir, sub)
	}
	for name, sub := range c.Args.Secrets {
		o.Secrets[name] = filepath.Join(dir, sub)
	}
	if c.Args.Platform != "" {
		p, err := v1.ParsePlatform(c.Args.Platform)
		if err != nil {
			t.Fatal(err)
		}
		d.Platform, o.Platform = *p, *p
	}
	d.File = filepath.Join(dir, c.Args.File)
	stop, err := c.Serve(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	report, err := makeImage(t, d, o)
	if err != nil {
		text := strings.ReplaceAll(err.Error(), dir+"/", "")
		switch {
		case c.Error == nil:
			log := ""
			if report != nil {
				log = tailOf(report.Log)
			}
			return text + "\n" + log
		case !c.Error.MatchString(text):
			return fmt.Sprintf("the error is\n\t%s\nand should match\n\t%s", text, c.Error)
		}
		return ""
	}
	if c.Error != nil {
		return fmt.Sprintf("no error, and it should match %s", c.Error)
	}
	image, err := sif.Open(report.Image)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	got, err := Canonical(image.ConfigJSON)
	if err != nil {
		t.Fatal(err)
	}
	if got != c.Config {
		return "the configuration\n" + DiffLines(c.Config, got)
	}
	tree, err := Read(Contents(image))
	if err != nil {
		t.Fatal(err)
	}
	on := Empty()
	if c.On == "base" {
		all, _ := Bases()
		if on, err = all[0].Tree(); err != nil {
			t.Fatal(err)
		}
	}
	if d := DiffLines(b.ours(image, c.Want, Diff(on, tree, c.Args.MTimes))); d != "" {
		return fmt.Sprintf("the files (-: BuildKit's, +: ours)\n%s\nlog:\n%s", d, tailOf(report.Log))
	}
	return ""
}

func makeImage(t *testing.T, d dockerfile.Options, o build.Options) (*build.Report, error) {
	data, err := os.ReadFile(d.File)
	if err != nil {
		return nil, err
	}
	p, err := dockerfile.New(t.Context(), data, d)
	if err != nil {
		return nil, err
	}
	b, err := build.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	return b.Build(t.Context(), "case", p)
}

// ours leaves out what an image for Apptainer has besides what the Dockerfile
// makes: of what was got what was not wanted, and of what was wanted that
// something of it is gone.
func (b *bench) ours(image *sif.Image, want, got string) (string, string) {
	added := map[string]bool{}
	for _, f := range sif.Overlay(image.Config, nil) {
		added["/"+f.Path] = true
	}
	wanted, again := map[string]bool{}, map[string]bool{}
	want = without(want, func(line, p string) bool {
		wanted[p] = true
		again[p] = added[p] && strings.HasPrefix(line, "gone ")
		return again[p]
	})
	return want, without(got, func(line, p string) bool {
		return strings.HasPrefix(p, "/.singularity.d") || added[p] && (!wanted[p] || again[p]) || again[path.Dir(p)]
	})
}

// without is a text less the lines for which drop says so.
func without(text string, drop func(line, path string) bool) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !drop(line, pathOf(line)) {
			out.WriteString(line)
		}
	}
	return out.String()
}

func pathOf(line string) string {
	for _, f := range strings.Fields(line) {
		if strings.HasPrefix(f, "/") {
			return f
		}
	}
	return ""
}

func tailOf(name string) string {
	data, _ := os.ReadFile(name)
	return string(data[max(0, len(data)-3000):])
}
