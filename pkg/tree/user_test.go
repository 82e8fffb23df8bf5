package tree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/sandboxtest"
)

// overlay mounts layers, the lowest first, with an upper folder of its own.
func overlay(t *testing.T, lower ...string) (top, upper string) {
	t.Helper()
	top, upper = plainDir(t), plainDir(t)
	options := "upperdir=" + upper + ",workdir=" + plainDir(t) + ",userxattr,lowerdir="
	for i := len(lower) - 1; i >= 0; i-- {
		options += lower[i]
		if i > 0 {
			options += ":"
		}
	}
	if err := unix.Mount("overlay", top, "overlay", 0, options); err != nil {
		sandboxtest.Skip(t, "no overlay for users: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	return top, upper
}

// plainDir is a folder whose name has no comma, as that of a row may: it would
// end an option of the mount.
func plainDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tree")
	must(t, err)
	t.Cleanup(func() { _ = RemoveAll(dir) })
	return dir
}

// TestCopy_InAnOverlay does what builds do: every row of TestCopy again, by an
// ordinary user, from an overlay into an overlay with what was there below.
func TestCopy_InAnOverlay(t *testing.T) {
	asUser(t, func(t *testing.T) {
		unix.Umask(0o022)
		for _, row := range copyRows {
			if strings.Contains(row.want, whPrefix) {
				continue // which Pack refuses
			}
			t.Run(row.name, func(t *testing.T) {
				src, dst := plainDir(t), plainDir(t)
				for _, p := range []string{src, dst} {
					must(t, os.Chmod(p, 0o755))
				}
				grow(t, src, row.src...)
				grow(t, dst, row.dst...)
				from, _ := overlay(t, src)
				into, upper := overlay(t, dst)
				before := list(t, dst, nil)
				row.runIn(t, from, into)
				if after := list(t, dst, nil); after != before {
					t.Errorf("the layer below changed from\n%s\nto\n%s", before, after)
				}
				// The upper folder alone makes the same tree of the lower one.
				var b bytes.Buffer
				must(t, Pack(&b, upper, nil, PackOptions{}))
				if _, err := Unpack(&b, dst, UnpackOptions{Apply: true}); err != nil {
					t.Fatal(err)
				}
				if a, b := list(t, into, nil), list(t, dst, nil); a != b && row.err == "" {
					t.Errorf("in the overlay\n%s\npacked and applied\n%s", a, b)
				}
			})
		}
	})
}

// TestFoldersThatDeny has modes that keep an ordinary user out, who is user 0
// of the namespace.
func TestFoldersThatDeny(t *testing.T) {
	asUser(t, func(t *testing.T) {
		dir := t.TempDir()
		none := func(name string) member { return member{h: tar.Header{Name: name, Mode: 0o10000, Uid: 5}, body: "x"} }
		first := archive(t, dirOf("d/", 0o10000), dirOf("d/e/", 0o500), none("d/e/f"), none("d/g"))
		specials, err := Unpack(bytes.NewReader(first), dir, UnpackOptions{Apply: true})
		must(t, err)
		_, err = Unpack(bytes.NewReader(archive(t, fileOf("d/e/.wh.f", ""), fileOf("d/e/h", "h"), none("d/g"))), dir, UnpackOptions{Apply: true, Specials: specials})
		must(t, err)
		want := lines("d/ 0000", "d/e/ 0500", "d/e/h=h", "d/g=x 0000 5:0")
		if got := list(t, dir, nil); got != want {
			t.Errorf("unpacked\n%s\nwant\n%s", got, want)
		}
		to := t.TempDir()
		matches, err := Select(dir, Selection{Sources: []string{"."}, Hash: true})
		must(t, err)
		for range 2 { // the second time over what is there
			_, err = Copy(to, CopyRequest{Root: dir, Matches: matches, Dest: "/", KeepOwners: true})
			must(t, err)
		}
		if got := list(t, to, nil); got != want {
			t.Errorf("copied\n%s\nwant\n%s", got, want)
		}
		again := t.TempDir()
		must(t, os.Chmod(again, 0o755))
		_, err = Unpack(bytes.NewReader(packed(t, to, nil, PackOptions{})), again, UnpackOptions{})
		must(t, err)
		if got := list(t, again, nil); got != want {
			t.Errorf("packed\n%s\nwant\n%s", got, want)
		}
		must(t, RemoveAll(filepath.Join(to, "d")))
	})
}

// TestCopy_KeepsCapabilities has an attribute that only a namespace's user 0 can
// set, and one that is the image's.
func TestCopy_KeepsAttributes(t *testing.T) {
	asUser(t, func(t *testing.T) {
		src, dst := t.TempDir(), t.TempDir()
		grow(t, src, "f=f")
		// VFS_CAP_REVISION_2, effective, CAP_NET_RAW (capabilities(7)).
		capability := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		must(t, unix.Setxattr(filepath.Join(src, "f"), capabilityAttr, capability, 0))
		must(t, unix.Setxattr(filepath.Join(src, "f"), "user.image", []byte("v"), 0))
		must(t, SetOwner(filepath.Join(src, "f"), Owner{5, 6}))
		for _, keep := range []bool{true, false} {
			matches, err := Select(src, Selection{Sources: []string{"f"}})
			must(t, err)
			_, err = Copy(dst, CopyRequest{Root: src, Matches: matches, Dest: fmt.Sprintf("/%v", keep), KeepOwners: keep, Owner: &Owner{7, 7}})
			must(t, err)
			p := filepath.Join(dst, fmt.Sprint(keep))
			for name, want := range map[string]bool{capabilityAttr: keep, "user.image": keep} {
				if n, _ := unix.Getxattr(p, name, nil); (n > 0) != want {
					t.Errorf("keep %v: %s has %d bytes", keep, name, n)
				}
			}
		}
		if got, want := list(t, dst, nil), lines("false=f 7:7", "true=f 7:7"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}
