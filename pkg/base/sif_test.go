package base

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/sandboxtest"
	"fence/pkg/sif"
	"fence/test/bed"
)

// ownImage is an image as sifbuild makes it, from the folder of tree.
func ownImage(t *testing.T, config v1.Config) string {
	t.Helper()
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		bed.Missing(t, "mksquashfs (Debian: squashfs-tools)")
	}
	root, dir := tree(t), t.TempDir()
	if err := sif.Add(root, sif.Overlay(config, nil)); err != nil {
		t.Fatal(err)
	}
	squashfs, file := filepath.Join(dir, "squashfs"), filepath.Join(dir, "x.sif")
	if err := sif.Pack(t.Context(), root, squashfs, sif.PackOptions{Processors: 1, MemMiB: 64, Pseudo: []string{"dev/zero c 666 0 0 1 5"}}); err != nil {
		t.Fatal(err)
	}
	owners := []sif.Owner{{Path: "etc/f", UID: 7, GID: 8}, {Path: "link", UID: 9, GID: 9}, {Path: "dev/null", Device: "c", Mode: 0o666, Major: 1, Minor: 3},
		{Path: "dev/zero", UID: 2, Device: "c", Mode: 0o666, Major: 1, Minor: 5}}
	if err := sif.Write(file, squashfs, sif.Meta{Arch: "amd64", Config: config, Owners: owners}); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSIF(t *testing.T) {
	config := v1.Config{Env: []string{"A=it's"}, Entrypoint: []string{"x"}, WorkingDir: "/w"}
	file := ownImage(t, config)
	s := New(Options{Local: map[string]string{"n": file}, Node: amd64})
	b := resolve(t, s, "n", amd64)
	if !reflect.DeepEqual(b.Config, config) || b.Warnings != nil || !validDigest(b.Digest) {
		t.Errorf("%+v", b)
	}
	got, err := contents(t, s, b)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got, "\n")
	for _, want := range []string{"0 etc/f 4750 7:8 text", "1 hard 4750 0:0 -> etc/f", "2 link 777 9:9 -> /abs olute", "6 pipe 600 0:0", "5 tmp/ 1777 0:0", "3 dev/null 666 0:0 1,3"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
	if strings.Count(got, "dev/zero") != 1 || !slices.Contains(lines, "3 dev/zero 666 2:0 1,5") {
		t.Errorf("a device that is in the image and in the list:\n%s", got)
	}
	if strings.Contains(got, "singularity") {
		t.Errorf("Apptainer's files are part of the base:\n%s", got)
	}
	_, err = New(Options{Local: map[string]string{"n": file}, Node: arm64}).Resolve(t.Context(), "n", arm64)
	if err == nil || !strings.Contains(err.Error(), "it is for linux/amd64, this node is linux/arm64: name an image for linux/arm64") {
		t.Error(err)
	}
}

// An image that Apptainer itself made, with a Dockerfile's environment.
func TestSIF_Apptainer(t *testing.T) {
	bed.Require(t, "images")
	s := New(Options{Local: map[string]string{"n": bed.Image("dockerenv")}, Node: amd64})
	b := resolve(t, s, "n", amd64)
	want := []string{"PATH=/opt/tool/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "JAVA_HOME=/opt/java", "VIRTUAL_ENV=/opt/venv", "LANG=C.UTF-8"}
	if !slices.Equal(b.Config.Env, want) || len(b.Warnings) != 1 || !strings.Contains(b.Warnings[0], "ENTRYPOINT, CMD, WORKDIR and USER are not known") {
		t.Errorf("%+v", b)
	}
	got, err := contents(t, s, b)
	if err != nil || !strings.Contains(got, "bin/busybox") || strings.Contains(got, "singularity") {
		t.Errorf("%v\n%.500s", err, got)
	}
}

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		line, want string
		odd        int
	}{
		{`export A="${A:-"v w"}"`, "A=v w", 0},
		{`export PATH="/a:/b"`, "PATH=/a:/b", 0},
		{`export A="${A:-"q\"b\\c\$d\` + "`" + `e"}"`, "A=q\"b\\c$d`e", 0},
		{`export A='it is'`, "A=it is", 0},
		{`# comment`, "", 0},
		{`export A="${B:-"v"}"`, "", 1},
		{`export A="$(id)"`, "", 1},
		{"export A=\"`id`\"", "", 1},
		{`export A='a'"'"'b'`, "", 1},
		{`. /etc/profile`, "", 1},
		{`if true; then`, "", 1},
	} {
		env, odd := environment(c.line + "\n")
		if strings.Join(env, "|") != c.want || odd != c.odd {
			t.Errorf("%s: %q, %d", c.line, env, odd)
		}
	}
}

// A root folder that an ordinary user cannot read whole is no base: what is
// missing would not be noticed.
func TestFolder_Unreadable(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "shadow"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		s := func() *Store { return New(Options{Local: map[string]string{"n": dir}, Node: amd64}) }
		resolve(t, s(), "n", amd64)
		if err := os.Chmod(filepath.Join(dir, "shadow"), 0); err != nil {
			t.Fatal(err)
		}
		_, err := s().Resolve(t.Context(), "n", amd64)
		if err == nil || !strings.Contains(err.Error(), "shadow: permission denied") || !strings.Contains(err.Error(), "make a copy that is yours") {
			t.Error(err)
		}
	})
}

func FuzzEnvironment(f *testing.F) {
	f.Add("export A=\"${A:-\"v\"}\"\nexport B='x'\n")
	f.Fuzz(func(t *testing.T, script string) {
		env, _ := environment(script)
		for _, kv := range env {
			if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsAny(name, " $`\"'") {
				t.Errorf("%q", kv)
			}
		}
	})
}

// Whatever a tar file holds, looking for an image in it ends with a base or
// one line.
func FuzzArchive(f *testing.F) {
	dir := f.TempDir()
	for name, text := range map[string]string{
		"index.json":    `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:` + strings.Repeat("a", 64) + `","size":3}]}`,
		"manifest.json": `[{"Config":"c.json","RepoTags":["n:latest"],"Layers":["l.tar"]}]`,
	} {
		f.Add(name, text, "c.json", `{"architecture":"amd64","os":"linux","rootfs":{"diff_ids":["sha256:`+strings.Repeat("b", 64)+`"]}}`, "l.tar")
	}
	f.Fuzz(func(t *testing.T, name, text, name2, text2, name3 string) {
		path := filepath.Join(dir, "x.tar")
		w, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		tw := tar.NewWriter(w)
		for n, s := range map[string]string{name: text, name2: text2, name3: "layer"} {
			if tw.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(s)), Typeflag: tar.TypeReg}) == nil {
				_, _ = tw.Write([]byte(s))
			}
		}
		_ = tw.Close()
		_ = w.Close()
		s := New(Options{Local: map[string]string{"n": path}, Node: amd64})
		b, err := s.Resolve(t.Context(), "n", amd64)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		_, _ = contents(t, s, b)
	})
}
