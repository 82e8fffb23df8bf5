package sif

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/test/bed"
)

// image packs a folder with nothing but busybox's programs and what Overlay
// adds, and writes the image.
func image(t *testing.T, config v1.Config) string {
	t.Helper()
	needPacker(t)
	bed.Require(t, "users", "apptainer", "images")
	root, dir := t.TempDir(), bed.TempDir(t)
	if out, err := exec.Command("cp", "-r", bed.Root("busybox")+"/bin", bed.Root("busybox")+"/usr", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "w"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Add(root, Overlay(config, map[string]string{"extra": "label"})); err != nil {
		t.Fatal(err)
	}
	squashfs, path := filepath.Join(dir, "squashfs"), filepath.Join(dir, "image.sif")
	if err := Pack(t.Context(), root, squashfs, PackOptions{Processors: 2, MemMiB: 256}); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, squashfs, Meta{Arch: "amd64", Config: config, Labels: map[string]string{"extra": "label"}}); err != nil {
		t.Fatal(err)
	}
	return path
}

func apptainer(t *testing.T, args ...string) string {
	t.Helper()
	cmd := bed.Apptainer(t, args...)
	var warn strings.Builder
	cmd.Stderr = &warn
	out, err := cmd.Output()
	if err != nil || strings.Contains(warn.String(), "readonly variable") {
		t.Errorf("apptainer %q: %v\n%s%s", args, err, out, warn.String())
	}
	return string(out)
}

// trial is how rollout starts a container.
var trial = []string{"exec", "--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command", "-C"}

func TestApptainer_Environment(t *testing.T) {
	c := oddConfig()
	c.Env = append(c.Env, "PATH=/opt/odd:/bin:/usr/bin", "UID=7", "A.B=c")
	img := image(t, c)
	for name, args := range map[string][]string{"exec": {"exec", "--cleanenv"}, "a trial": trial} {
		t.Run(name, func(t *testing.T) {
			out := apptainer(t, append(args, "--env", "ASKED=for", img, "/bin/busybox", "env", "-0")...)
			checkOdd(t, out)
			for _, want := range []string{"\x00PATH=/opt/odd:/bin:/usr/bin\x00", "\x00ASKED=for\x00"} {
				if !strings.Contains("\x00"+out, want) {
					t.Errorf("no %q in %q", want, out)
				}
			}
		})
	}
	cmd := bed.Apptainer(t, "exec", img, "/bin/sh", "-c", `echo "$PLAIN"`)
	cmd.Env = append(cmd.Env, "PLAIN=the host's")
	if out, err := cmd.Output(); err != nil || string(out) != "b\n" {
		t.Errorf("the host's variable against the image's: %q, %v", out, err)
	}
}

func TestApptainer_Actions(t *testing.T) {
	img := image(t, v1.Config{Entrypoint: []string{"/bin/echo", "it's"}, Cmd: []string{"a b", "$HOME"}, WorkingDir: "/w", Labels: map[string]string{"own": "l"}})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", img}, "it's a b $HOME\n"},
		{[]string{"run", img, "c", "d"}, "it's c d\n"},
		{append(append([]string{}, trial...), img, "/bin/busybox", "id", "-u"), "0\n"},
		{[]string{"inspect", img}, "extra: label\nown: l\nsifbuild.workdir: /w\n"},
		{[]string{"inspect", "--runscript", img}, string(Runscript(v1.Config{Entrypoint: []string{"/bin/echo", "it's"}, Cmd: []string{"a b", "$HOME"}, WorkingDir: "/w"})) + "\n"},
	} {
		if got := apptainer(t, c.args...); got != c.want {
			t.Errorf("apptainer %q: %q, not %q", c.args, got, c.want)
		}
	}
	shell := bed.Apptainer(t, "shell", img)
	shell.Stdin = strings.NewReader("echo in $0; pwd -P >/dev/null && echo fine\n")
	if out, err := shell.Output(); err != nil || string(out) != "in /bin/sh\nfine\n" {
		t.Errorf("shell: %q, %v", out, err)
	}
	apptainer(t, "instance", "start", img, "sifbuild-test")
	t.Cleanup(func() {
		if t.Failed() {
			_ = bed.CommandContext(t, t.Context(), "apptainer", "instance", "stop", "sifbuild-test").Run()
		}
	})
	if got := apptainer(t, "run", "instance://sifbuild-test", "x"); got != "it's x\n" {
		t.Errorf("in an instance: %q", got)
	}
	apptainer(t, "instance", "stop", "sifbuild-test")
}
