package sifbuild

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"fence/test/bed"
)

// These are the rows of the table "Things that went wrong" of the guide that
// this project was written for, as far as they are about building images. What
// a registry or a mirror does wrong is in other tests of this folder.

// "Released images will not run: built for aarch64". A step that would have to
// run is refused with what it is for, what the node is, and what to do; an image
// that needs no step can be made, and is not started.
func TestGuide_OtherArchitecture(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.arm64("arm")
	p.bases = append(p.bases, "arm="+p.path("arm"))
	p.task("runs", "FROM arm\nRUN /bin/sh -c true\n")
	p.task("plain", "FROM busybox\nRUN true\n")
	r := p.run(p.command(nil))
	f := r.records["runs"].Fault
	if r.code != 3 || f == nil || f.Class != "architecture" {
		t.Fatalf("exit code %d, %+v\n%s", r.code, f, r.stderr)
	}
	for _, want := range []string{"Dockerfile:1: FROM", "linux/arm64", "this node is linux/amd64", "build on a node"} {
		if !strings.Contains(f.Message+f.Hint, want) {
			t.Errorf("the message has no %q: %s; %s", want, f.Message, f.Hint)
		}
	}
	if p := r.records["plain"]; p.Fault != nil {
		t.Errorf("the other task has no image: %v", p.Fault)
	}

	// The image itself, as somebody else's build would have made it.
	p.task("made", "FROM arm\nCOPY <<EOF /made\nEOF\n")
	made := p.run(p.command([]string{"made"}, "--arch", "arm64")).records["made"]
	if made.Fault != nil || made.Arch != "arm64" || !strings.HasPrefix(made.Smoke, "not run: ") {
		t.Fatalf("%+v", made)
	}
	cmd := bed.Command(t, bed.Bin(t, "sifbuild"), "check", made.Image, "--require", "none")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "arm64") || !strings.Contains(string(out), "amd64") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// arm64 makes an OCI layout of a base for arm64 with a shell that is really for
// arm64.
func (p *place) arm64(dir string) {
	p.t.Helper()
	root := p.path(dir + ".root")
	p.must(os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(root, "bin/sh"), "./inside")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	data, err := exec.Command("tar", "-C", root, "--owner=0", "--group=0", "-c", "bin").Output()
	p.must(err)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	p.must(err)
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer})
	p.must(err)
	config, err := img.ConfigFile()
	p.must(err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "arm64"
	img, err = mutate.ConfigFile(img, config)
	p.must(err)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	_, err = layout.Write(p.path(dir), index)
	p.must(err)
	p.must(exec.Command("chmod", "-R", "a+rX", p.path(dir)).Run())
}

// "Image build fails with a Python IndentationError": the bodies of heredocs
// arrive as they are, indentation, comments, braces and percent signs too.
func TestGuide_Heredoc(t *testing.T) {
	t.Parallel()
	const body = "import sys\nif True:\n    # a comment\n    for i in range(2):\n\n        print('%d %s {{ x }}' % (i, sys.argv[0][:0]))\n"
	p := newPlace(t)
	p.bases = append(p.bases, "debian="+bed.Root("debian"))
	p.task("python", "FROM debian\nCOPY <<'EOF' /x.py\n"+body+"EOF\nRUN python3 /x.py >/one\nRUN python3 <<'EOF' >/two\n"+body+"EOF\n")
	image := p.build(nil)["python"].Image
	for name, want := range map[string]string{"/x.py": body, "/one": "0  {{ x }}\n1  {{ x }}\n", "/two": "0  {{ x }}\n1  {{ x }}\n"} {
		if got := p.file(image, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// "Reference solution fails a file-permission check: cluster default umask is
// 0002; tasks assume Docker's 022".
func TestGuide_Umask(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("modes", "FROM busybox\nRUN umask >/umask; mkdir /d; echo >/f\nWORKDIR /w\nCOPY <<EOF /h/f\nEOF\n")
	cmd := p.command(nil)
	// The control: what the caller's own shell makes has the other mode.
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `umask 0002 && echo >"$0" && exec "$@"`, p.path("own"), cmd.Path}, cmd.Args[1:]...)
	uid, gid, _ := bed.User(t)
	p.must(os.Chown(p.dir, uid, gid))
	image := p.built(p.run(cmd))["modes"].Image
	if st, err := os.Stat(p.path("own")); err != nil || st.Mode().Perm() != 0o664 {
		t.Fatalf("the caller's umask is not 0002: %v, %v", st, err)
	}
	if got := p.file(image, "/umask"); got != "0022\n" {
		t.Errorf("a RUN line has the umask %q", got)
	}
	got := p.listing(image)
	for name, want := range map[string]string{"f": "-rw-r--r--", "umask": "-rw-r--r--", "d": "drwxr-xr-x", "w": "drwxr-xr-x", "h": "drwxr-xr-x", "h/f": "-rw-r--r--"} {
		if !strings.HasPrefix(got[name], want+" ") {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	st, err := os.Stat(image)
	if err != nil || st.Mode().Perm()&0o044 == 0 {
		t.Errorf("others of the project cannot read the image: %v, %v", st, err)
	}
}

// "0 tasks found: the task scanner does not follow symbolic links".
func TestGuide_LinkedTasks(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN echo a >/f\n")
	p.must(os.Rename(p.path("tasks"), p.path("real")))
	p.must(os.Mkdir(p.path("tasks"), 0o755))
	p.must(os.Symlink("../real/a", p.path("tasks/linked")))
	r := p.build(nil)["linked"]
	if got := p.file(r.Image, "/f"); got != "a\n" {
		t.Errorf("the image has %q", got)
	}
	// A link that leads nowhere is said, and is no reason to find nothing.
	p.must(os.Symlink("../real/gone", p.path("tasks/dangling")))
	if r := p.run(p.command(nil)); r.code != 0 || len(r.records) != 1 || !strings.Contains(r.stderr, "dangling") {
		t.Errorf("exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
	}
}

// "fakeroot fails inside the image: the host's fakeroot binary needs a newer C
// library than an old base image has". No program of the node's is in the image.
func TestGuide_OldLibc(t *testing.T) {
	t.Parallel()
	bed.Require(t, "bullseye")
	p := newPlace(t)
	p.bases = append(p.bases, "bullseye="+bed.Root("bullseye"))
	const text = "RUN echo >/f && chown 5:6 /f && mkdir /d && chown 65534 /d && stat -c %u:%g /f /d >/owners\n"
	p.task("glibc", "FROM bullseye\n"+text)
	p.task("no libc", "FROM busybox\n"+text)
	for name, r := range p.build(nil) {
		got, all := p.file(r.Image, "/owners"), p.listing(r.Image)
		if got != "5:6\n65534:0\n" || !strings.HasSuffix(all["f"], " 5:6 ") || !strings.HasSuffix(all["d"], " 65534:0 ") {
			t.Errorf("%s: stat says %q, the image %q and %q", name, got, all["f"], all["d"])
		}
	}
}

// "Agent cannot start: tmux: command not found. The image build installs tmux
// on a best-effort basis and it silently failed".
func TestGuide_SilentlyNoTmux(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	// Where apt reaches no mirror, what it says is thrown away, and the build goes on.
	p.bases = append(p.bases, "debian="+bed.Root("debian"))
	const nowhere = "RUN rm -rf /etc/apt/sources.list* /usr/bin/tmux\n"
	p.task("silent", "FROM debian\n"+nowhere+"RUN (apt-get update && apt-get install -y tmux) >/dev/null 2>&1 || true\n")
	p.task("none", "FROM busybox\nRUN tmux -V >/dev/null 2>&1 || true\n")
	r := p.run(p.command(nil, "--require", "tmux"))
	if r.code != 3 {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	for name, one := range r.records {
		if one.Fault == nil || one.Fault.Class != "require" || !strings.Contains(one.Fault.Message, "tmux") || one.Image != "" {
			t.Errorf("%s: %+v, image %q", name, one.Fault, one.Image)
		}
	}
	if left, _ := filepath.Glob(p.path("cache/sif/*")); len(left) > 0 {
		t.Errorf("images are left: %v", left)
	}
	// The control: without the requirement they are built.
	if r := p.run(p.command(nil, "--require", "none")); r.code != 0 {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
}

// "Home directory over quota: tools cache into $HOME by default".
func TestGuide_FullHome(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("home")
	p.small("home", 64<<10)
	p.write("home/full", strings.Repeat("x", 1000), 0o644)
	fill := bed.Command(t, "sh", "-c", `cat /dev/zero >"$0" 2>/dev/null; ! echo more >"$0.more"`, p.path("home/zeros"))
	if out, err := fill.CombinedOutput(); err != nil {
		t.Fatalf("the control: the home is not full: %v\n%s", err, out)
	}
	before := names(t, p.path("home"))
	p.task("a", "FROM busybox\nRUN echo $HOME >/said && echo >~/f\n")
	cmd := p.command(nil)
	cmd.Env = append(cmd.Env, "HOME="+p.path("home"))
	image := p.built(p.run(cmd))["a"].Image
	if got := p.file(image, "/said"); got != "/root\n" {
		t.Errorf("a RUN line has the home %q", got)
	}
	if after := names(t, p.path("home")); after != before {
		t.Errorf("the home has\n%s\nand had\n%s", after, before)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	var b bytes.Buffer
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b.WriteString(e.Name() + "\n")
	}
	return b.String()
}
