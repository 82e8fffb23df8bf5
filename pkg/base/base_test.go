package base

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"fence/pkg/internal/blobs"
)

var (
	amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}
	arm64 = v1.Platform{OS: "linux", Architecture: "arm64"}
)

// image is an image of two layers: the file a, with text, and the file b.
func image(t testing.TB, p v1.Platform, text string) v1.Image {
	t.Helper()
	img := empty.Image
	for _, f := range [][2]string{{"a", text}, {"b", "second"}} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o640, Uid: 3, Gid: 4, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Variant = p.OS, p.Architecture, p.Variant
	c.Config = v1.Config{Env: []string{"A=" + text}, Cmd: []string{"run"}}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func index(t testing.TB, images map[string]v1.Image) v1.ImageIndex {
	t.Helper()
	idx := v1.ImageIndex(empty.Index)
	for platform, img := range images {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			t.Fatal(err)
		}
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: p}})
	}
	return idx
}

func writeLayout(t *testing.T, idx v1.ImageIndex) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	if _, err := layout.Write(dir, idx); err != nil {
		t.Fatal(err)
	}
	return dir
}

// contents are the entries of all layers, in order.
func contents(t *testing.T, s *Store, b Base) (string, error) {
	t.Helper()
	layers, err := s.Layers(t.Context(), b)
	if err != nil {
		return "", err
	}
	var out []string
	for _, l := range layers {
		r, err := l.Open()
		if err != nil {
			return "", err
		}
		tr := tar.NewReader(r)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return "", err
			}
			data, err := io.ReadAll(tr)
			if err != nil {
				return "", err
			}
			line := fmt.Sprintf("%c %s %o %d:%d", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid)
			switch {
			case h.Linkname != "":
				line += " -> " + h.Linkname
			case h.Typeflag == tar.TypeChar:
				line += fmt.Sprintf(" %d,%d", h.Devmajor, h.Devminor)
			case h.Typeflag == tar.TypeReg:
				line += " " + string(data)
			}
			out = append(out, line)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return "", err
		}
		if err := r.Close(); err != nil {
			return "", err
		}
	}
	return strings.Join(out, "\n"), nil
}

func digest(t testing.TB, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func resolve(t *testing.T, s *Store, image string, p v1.Platform) Base {
	t.Helper()
	b, err := s.Resolve(t.Context(), image, p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestResolve_Archives(t *testing.T) {
	img := image(t, amd64, "one")
	tag, err := name.NewTag("python:3.12")
	if err != nil {
		t.Fatal(err)
	}
	docker := filepath.Join(t.TempDir(), "docker.tar")
	if err := tarball.WriteToFile(docker, tag, img); err != nil {
		t.Fatal(err)
	}
	dir := writeLayout(t, index(t, map[string]v1.Image{"linux/amd64": img, "linux/arm64": image(t, arm64, "other")}))
	oci := filepath.Join(t.TempDir(), "oci.tar")
	pack(t, dir, oci)
	cfg, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for where, want := range map[string]string{dir: digest(t, img), oci: digest(t, img), docker: cfg.String()} {
		s := New(Options{Local: map[string]string{"python:3.12": where}, Node: amd64})
		for _, n := range []string{"python:3.12", "docker.io/library/python:3.12", "index.docker.io/library/python:3.12"} {
			b := resolve(t, s, n, amd64)
			if b.Digest != want || b.Config.Env[0] != "A=one" || b.Name != n || b.Source != where {
				t.Errorf("%s: %+v, not %s", where, b, want)
			}
			if got, err := contents(t, s, b); got != "0 a 640 3:4 one\n0 b 640 3:4 second" || err != nil {
				t.Errorf("%s: %s, %v", where, got, err)
			}
		}
	}
}

// pack makes a tar of a folder, as "tar -C dir -cf out ." does.
func pack(t *testing.T, dir, out string) {
	t.Helper()
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestResolve_Platforms(t *testing.T) {
	all := writeLayout(t, index(t, map[string]v1.Image{"linux/amd64": image(t, amd64, "x"), "linux/arm64/v8": image(t, arm64, "y"), "windows/amd64": image(t, amd64, "w")}))
	nested := writeLayout(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index(t, map[string]v1.Image{"linux/amd64": image(t, amd64, "x"), "linux/arm64": image(t, arm64, "y")})}))
	plain := writeLayout(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image(t, arm64, "y")}))
	two := writeLayout(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image(t, amd64, "x"), Descriptor: v1.Descriptor{Annotations: map[string]string{refName: "1"}}},
		mutate.IndexAddendum{Add: image(t, amd64, "y"), Descriptor: v1.Descriptor{Annotations: map[string]string{refName: "2"}}}))
	for _, c := range []struct {
		layout, name string
		p            v1.Platform
		env, err     string
	}{
		{all, "n", amd64, "A=x", ""},
		{all, "n", arm64, "A=y", ""},
		{all, "n", v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}, "A=y", ""},
		{all, "n", v1.Platform{OS: "linux", Architecture: "s390x"}, "", "base image n: given as LAYOUT: it is for linux/amd64, linux/arm64/v8, windows/amd64, the build is for linux/s390x and this node is linux/amd64: name an image for linux/s390x, or build on a node of the image's architecture"},
		{nested, "n", arm64, "A=y", ""},
		{plain, "n", arm64, "A=y", ""},
		{plain, "n", amd64, "", "base image n: given as LAYOUT: it is for linux/arm64, this node is linux/amd64: name an image for linux/amd64, or build on a node of the image's architecture"},
		{two, "n:2", amd64, "A=y", ""},
		{two, "n:3", amd64, "", "it holds several images for linux/amd64 (1, 2)"},
		{writeLayout(t, empty.Index), "n", amd64, "", "it holds no image"},
	} {
		s := New(Options{Local: map[string]string{c.name: c.layout}, Node: amd64})
		b, err := s.Resolve(t.Context(), c.name, c.p)
		switch {
		case c.err == "" && (err != nil || b.Config.Env[0] != c.env):
			t.Errorf("%s for %s: %+v, %v", c.name, c.p, b, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(c.err, "LAYOUT", c.layout))):
			t.Errorf("%s for %s: %v", c.name, c.p, err)
		}
	}
}

// A layout with a byte changed is noticed wherever the byte is.
func TestLayout_Damaged(t *testing.T) {
	for _, which := range []string{"manifest", "config", "layer"} {
		img := image(t, amd64, "x")
		dir := writeLayout(t, index(t, map[string]v1.Image{"linux/amd64": img}))
		m, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		h := map[string]v1.Hash{"config": m.Config.Digest, "layer": m.Layers[1].Digest}[which]
		if which == "manifest" {
			h, _ = img.Digest()
		}
		s := New(Options{Local: map[string]string{"n": dir}, Node: amd64})
		if got, err := contents(t, s, resolve(t, s, "n", amd64)); err != nil || got == "" {
			t.Errorf("the control: %v", err)
		}
		path := filepath.Join(dir, blobs.Path(h))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, damage := range []func([]byte) []byte{
			func(b []byte) []byte { b = slices.Clone(b); b[len(b)-3] ^= 1; return b },
			func(b []byte) []byte { return b[:len(b)-1] },
			func(b []byte) []byte { return append(slices.Clone(b), ' ') },
		} {
			if err := os.WriteFile(path, damage(data), 0o644); err != nil {
				t.Fatal(err)
			}
			s := New(Options{Local: map[string]string{"n": dir}, Node: amd64})
			b, err := s.Resolve(t.Context(), "n", amd64)
			if err == nil {
				_, err = contents(t, s, b)
			}
			if err == nil || !strings.Contains(err.Error(), h.String()) {
				t.Errorf("%s: %v", which, err)
			}
		}
	}
}

// A FIFO in the place of a blob is an error, and not waited for.
func TestLayout_FIFO(t *testing.T) {
	img := image(t, amd64, "x")
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []v1.Hash{manifest, m.Config.Digest, m.Layers[1].Digest} {
		dir := writeLayout(t, index(t, map[string]v1.Image{"linux/amd64": img}))
		path := filepath.Join(dir, blobs.Path(h))
		if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o644)); err != nil {
			t.Fatal(err)
		}
		s := New(Options{Local: map[string]string{"n": dir}, Node: amd64})
		b, err := s.Resolve(t.Context(), "n", amd64)
		if err == nil {
			_, err = contents(t, s, b)
		}
		if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%s: %v", h, err)
		}
	}
}

// tree makes a root folder of every kind that an ordinary user can make.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(dir, "etc/d"), 0o755), os.WriteFile(filepath.Join(dir, "etc/f"), []byte("text"), 0o640), os.Chmod(filepath.Join(dir, "etc/f"), 0o4750),
		os.Link(filepath.Join(dir, "etc/f"), filepath.Join(dir, "hard")), os.Symlink("/abs olute", filepath.Join(dir, "link")), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "etc/f"), 0o750|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFolder(t *testing.T) {
	dir := tree(t)
	s := New(Options{Local: map[string]string{"n": dir}, Node: amd64})
	b := resolve(t, s, "n", amd64)
	if b.Folder != dir || !validDigest(b.Digest) {
		t.Errorf("%+v", b)
	}
	want := "5 etc/ 755 0:0\n5 etc/d/ 755 0:0\n0 etc/f 4750 0:0 text\n1 hard 4750 0:0 -> etc/f\n2 link 777 0:0 -> /abs olute\n6 pipe 600 0:0"
	if got, err := contents(t, s, b); got != want || err != nil {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
}

func TestFolder_Digest(t *testing.T) {
	dir := tree(t)
	of := func() string {
		t.Helper()
		return resolve(t, New(Options{Local: map[string]string{"n": dir}}), "n", amd64).Digest
	}
	p := func(s string) string { return filepath.Join(dir, s) }
	seen := map[string]string{of(): "first"}
	again := of()
	if seen[again] == "" {
		t.Error("the digest of a folder changes by itself")
	}
	st, err := os.Stat(p("etc/f"))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func() error{
		"a byte, same size and time": func() error {
			if err := os.WriteFile(p("etc/f"), []byte("tekt"), 0); err != nil {
				return err
			}
			return os.Chtimes(p("etc/f"), st.ModTime(), st.ModTime())
		},
		"a mode":            func() error { return os.Chmod(p("etc/f"), 0o644) },
		"the root's mode":   func() error { return os.Chmod(dir, 0o711) },
		"a link":            func() error { os.Remove(p("link")); return os.Symlink("/else", p("link")) },
		"a name":            func() error { return os.Rename(p("pipe"), p("tube")) },
		"a type":            func() error { os.Remove(p("link")); return os.WriteFile(p("link"), []byte("/else"), 0o777) },
		"an empty folder":   func() error { return os.Mkdir(p("new"), 0o755) },
		"a file that is no": func() error { return os.Remove(p("etc/f")) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		d := of()
		if seen[d] != "" {
			t.Errorf("%s: the digest is that of %s", what, seen[d])
		}
		seen[d] = what
	}
	old := of()
	if err := os.Chtimes(p("etc"), time.Unix(5, 0), time.Unix(5, 0)); err != nil {
		t.Fatal(err)
	}
	if of() != old {
		t.Error("a time changes the digest")
	}
}

// What was read once is not read again, until something changes it.
func TestDigestOf_Remembers(t *testing.T) {
	s := New(Options{Dir: t.TempDir()})
	reads := 0
	at := time.Now().Add(-time.Hour)
	mark := "a"
	ask := func(s *Store) string {
		d, err := s.digestOf("/x", func(h hash.Hash) (time.Time, error) { _, err := io.WriteString(h, mark); return at, err },
			func(h hash.Hash) error { reads++; _, err := io.WriteString(h, mark); return err })
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := ask(s)
	if ask(s) != first || reads != 1 {
		t.Errorf("%d reads of what did not change", reads)
	}
	mark = "b"
	if ask(s) == first || reads != 2 {
		t.Errorf("%d reads after a change", reads)
	}
	mark, at = "c", time.Now()
	ask(s)
	if ask(s); reads != 4 {
		t.Errorf("%d reads: a change of just now was believed", reads)
	}
}

func TestResolve_Errors(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no tar ", 1000)), 0o644); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain.tar")
	pack(t, tree2(t), plain)
	sif := filepath.Join(dir, "x.sif")
	if err := os.WriteFile(sif, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for where, want := range map[string]string{
		filepath.Join(dir, "none"): "base image n: given as a local base: stat ",
		text:                       "neither an image archive (tar) nor a SIF nor a folder",
		plain:                      "neither index.json nor manifest.json",
		sif:                        "is not a SIF image",
	} {
		_, err := New(Options{Local: map[string]string{"n": where}, Node: amd64}).Resolve(t.Context(), "n", amd64)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", where, err)
		}
	}
}

func tree2(t *testing.T) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestResolve_Cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := New(Options{Local: map[string]string{"n": tree(t)}, Node: amd64})
	if _, err := s.Resolve(ctx, "n", amd64); err == nil {
		t.Error("resolved")
	}
	resolve(t, s, "n", amd64)
}
