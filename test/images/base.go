package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"fence/test/bed"
)

// Image is a base that the cases build on.
type Image struct {
	Name   string
	Config v1.Config

	entries []baseEntry
}

type baseEntry struct {
	Entry
	text string
}

// epoch is the time of everything in a base.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// applets of busybox that the bases have in /bin, all of which Debian's has.
const applets = "ash awk base64 basename cat chgrp chmod chown cmp cp cut date dd df diff dirname du echo egrep env " +
	"expr false find free grep groups gunzip gzip head hostname id ip kill ln ls md5sum mkdir mkfifo mknod mktemp mount " +
	"mv nproc od paste pidof printf ps pwd readlink realpath rm rmdir sed seq setsid sh sha256sum sleep sort stat stty " +
	"tail tar tee test timeout touch tr true truncate tty umount uname uniq unlink unxz usleep wc which whoami xargs xz zcat"

// Bases are the images that a case can begin with besides scratch:
//
//	base   busybox, users and groups root, bob 1000:1001 (home /home/bob), daemon
//	       1:1; groups bobg 1001 and docker 999, which bob is in; ENV PATH and BASEVAR=bv
//	base2  the same files, and one of everything in its configuration, ONBUILD too
//	bare   the same files and no configuration at all, so no PATH either
//
// They are the same bytes whenever the same busybox is there.
func Bases() ([]Image, error) {
	if _, err := busybox(); err != nil {
		return nil, err
	}
	root := rootEntries()
	const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	return []Image{
		{Name: "base", entries: root, Config: v1.Config{
			Env: []string{path, "BASEVAR=bv"},
			Cmd: []string{"/bin/sh"},
		}},
		{Name: "base2", entries: root, Config: v1.Config{
			User:         "bob",
			Env:          []string{"PATH=/opt/bin:/bin", "B2=two words", "A.B=dotted"},
			Entrypoint:   []string{"/bin/echo", "entry"},
			Cmd:          []string{"of", "base2"},
			WorkingDir:   "/home/bob",
			Labels:       map[string]string{"who": "base2", "kept": "yes"},
			ExposedPorts: map[string]struct{}{"80/tcp": {}},
			Volumes:      map[string]struct{}{"/data": {}},
			StopSignal:   "SIGINT",
			Healthcheck:  &v1.HealthConfig{Test: []string{"CMD", "true"}, Interval: time.Minute, Retries: 2},
			Shell:        []string{"/bin/ash", "-c"},
			OnBuild:      []string{"ENV TRIGGERED=$B2", "RUN echo $TRIGGERED > /tmp/trigger; id -un >> /tmp/trigger; pwd >> /tmp/trigger"},
		}},
		{Name: "bare", entries: root},
	}, nil
}

func rootEntries() []baseEntry {
	var all []baseEntry
	add := func(kind string, mode uint32, uid, gid int, name, text string) {
		e := baseEntry{Entry: Entry{Path: name, Type: kind, Mode: mode, UID: uid, GID: gid, MTime: epoch}}
		if kind == "link" {
			e.Link = text
		} else {
			e.text = text
		}
		all = append(all, e)
	}
	for _, dir := range []string{"/", "/bin", "/dev", "/etc", "/home", "/proc", "/sys", "/usr", "/usr/bin", "/var", "/opt", "/opt/bin"} {
		add("dir", 0o755, 0, 0, dir, "")
	}
	add("dir", 0o700, 0, 0, "/root", "")
	add("dir", 0o1777, 0, 0, "/tmp", "")
	add("dir", 0o1777, 0, 0, "/var/tmp", "")
	add("dir", 0o755, 1000, 1001, "/home/bob", "")
	add("file", 0o644, 1000, 1001, "/home/bob/.profile", "# bob's\n")
	add("file", 0o644, 0, 0, "/etc/passwd", "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nbob:x:1000:1001:Bob:/home/bob:/bin/sh\n")
	add("file", 0o644, 0, 0, "/etc/group", "root:x:0:\ndaemon:x:1:\ndocker:x:999:bob\nbobg:x:1001:\n")
	add("file", 0o640, 0, 999, "/etc/shadow", "root:*:1::::::\n")
	add("file", 0o644, 0, 0, "/etc/hosts", "127.0.0.1 of-the-base\n")
	add("link", 0o777, 0, 0, "/etc/alias", "passwd")
	add("link", 0o777, 0, 0, "/lnkdir", "opt")
	add("file", 0o755, 0, 0, "/bin/busybox", programTag)
	for _, applet := range strings.Fields(applets) {
		add("link", 0o777, 0, 0, "/bin/"+applet, "busybox")
	}
	slices.SortFunc(all, func(a, b baseEntry) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// Walk gives the files of the image, folders before what is in them.
func (i Image) Walk() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range i.entries {
			if e.Type == "file" {
				data, err := e.data()
				if err != nil {
					yield(Entry{}, err)
					return
				}
				e.Content = bytes.NewReader(data)
			}
			if !yield(e.Entry, nil) {
				return
			}
		}
	}
}

func (e baseEntry) data() ([]byte, error) {
	if e.text == programTag {
		return busybox()
	}
	return []byte(e.text), nil
}

// Tree is the filesystem of the image.
func (i Image) Tree() (Tree, error) { return Read(i.Walk()) }

// OCI is the image itself: one layer and its configuration.
func (i Image) OCI() (v1.Image, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range i.entries {
		h := &tar.Header{Name: strings.TrimPrefix(e.Path, "/"), Mode: int64(e.Mode), Uid: e.UID, Gid: e.GID, ModTime: e.MTime, Format: tar.FormatPAX}
		var data []byte
		switch e.Type {
		case "dir":
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case "link":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
		case "file":
			var err error
			if data, err = e.data(); err != nil {
				return nil, err
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		}
		if e.Path == "/" {
			h.Name = "./"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", runtime.GOARCH, v1.Time{Time: epoch}, i.Config
	return mutate.ConfigFile(image, file)
}

// WriteLayout writes the image as an OCI layout into dir and says its digest.
func (i Image) WriteLayout(dir string) (v1.Hash, error) {
	image, err := i.OCI()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("making the image %s: %w", i.Name, err)
	}
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := index.AppendImage(image); err != nil {
		return v1.Hash{}, err
	}
	return image.Digest()
}

// WriteFolder writes the files of the image into dir, which is made. Owners are
// lost unless the caller is root.
func (i Image) WriteFolder(dir string) error {
	for _, e := range i.entries {
		name := filepath.Join(dir, e.Path)
		var err error
		switch e.Type {
		case "dir":
			err = os.MkdirAll(name, 0o755)
		case "link":
			err = os.Symlink(e.Link, name)
		case "file":
			var data []byte
			if data, err = e.data(); err == nil {
				err = os.WriteFile(name, data, 0o644)
			}
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Lchown(name, e.UID, e.GID)
		}
		if err == nil && e.Type != "link" {
			err = os.Chmod(name, fs.FileMode(e.Mode&0o777)|sticky(e.Mode))
		}
		if err != nil {
			return fmt.Errorf("writing the image %s: %w", i.Name, err)
		}
	}
	return nil
}

func sticky(mode uint32) fs.FileMode {
	if mode&0o1000 != 0 {
		return fs.ModeSticky
	}
	return 0
}

// busybox is the one program of the bases: the test bed's, else this machine's
// if it is static.
var busybox = sync.OnceValues(func() ([]byte, error) {
	for _, name := range []string{filepath.Join(bed.Root("busybox"), "bin/busybox"), "/bin/busybox"} {
		data, err := os.ReadFile(name)
		if err == nil {
			return data, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, errors.New("no busybox for the bases of the cases: test/bed/up busybox, or Debian's busybox-static")
})

var busyboxDigest = sync.OnceValues(func() ([]byte, error) {
	data, err := busybox()
	sum := sha256.Sum256(data)
	return sum[:], err
})
