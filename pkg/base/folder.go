package base

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"fence/pkg/internal/atomicfile"
)

// folder is the base that a root folder is.
func (s *Store) folder(ctx context.Context, dir string) (Base, error) {
	digest, err := s.digestOf(dir, func(stamp hash.Hash) (time.Time, error) { return stampFolder(ctx, dir, stamp) },
		func(sum hash.Hash) error { return hashFolder(ctx, dir, sum) })
	if err != nil {
		return Base{}, err
	}
	return Base{Digest: digest, Folder: dir, layers: func(context.Context) ([]Layer, error) {
		return []Layer{{Digest: digest, Open: func() (io.ReadCloser, error) {
			return piped(func(w *tar.Writer) error { return tarFolder(dir, w) }), nil
		}}}, nil
	}}, nil
}

// piped is the tar stream that fill writes.
func piped(fill func(*tar.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		err := fill(t)
		if err == nil {
			err = t.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}

// A place is one path of a root folder.
type place struct {
	path string // relative, "." is the folder
	full string
	st   *syscall.Stat_t
	link string
}

// owner is who owns the path in the image: 0:0 in place of whoever reads it,
// and of ids that this user namespace has no number for.
func (p place) owner() (uid, gid int) {
	const overflow = 65534 // the default of /proc/sys/kernel/overflowuid
	if int(p.st.Uid) == os.Geteuid() || p.st.Uid == overflow {
		return 0, 0
	}
	return int(p.st.Uid), int(p.st.Gid)
}

// eachPlace visits everything in dir but sockets, folders first, names in byte order.
func eachPlace(ctx context.Context, dir string, visit func(place) error) error {
	return filepath.WalkDir(dir, func(full string, d fs.DirEntry, err error) error {
		if err != nil {
			return unreadable(dir, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, full)
		if err != nil {
			return err
		}
		p := place{path: filepath.ToSlash(rel), full: full, st: info.Sys().(*syscall.Stat_t)}
		switch p.st.Mode & unix.S_IFMT {
		case unix.S_IFSOCK: // belongs to a process that is not in the image
			return nil
		case unix.S_IFLNK:
			if p.link, err = os.Readlink(full); err != nil {
				return err
			}
		}
		return visit(p)
	})
}

// unreadable says what to do about a file that belongs to somebody else.
func unreadable(dir string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("the root folder has to be readable as a whole, and is not (%w): make a copy that is yours, such as by tar -c as its owner and tar -x as you, or take an image in its place", err)
	}
	return err
}

// hashFolder adds all that a build can see of a root folder: types,
// permissions, owners, links and bytes; not the times.
func hashFolder(ctx context.Context, dir string, sum hash.Hash) error {
	fmt.Fprintf(sum, "root folder 1\n")
	return eachPlace(ctx, dir, func(p place) error {
		uid, gid := p.owner()
		fmt.Fprintf(sum, "%q %o %d:%d", p.path, p.st.Mode, uid, gid)
		switch p.st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			digest, err := hashFile(p.full)
			if err != nil {
				return unreadable(dir, err)
			}
			fmt.Fprintf(sum, " %s", digest)
		case unix.S_IFLNK:
			fmt.Fprintf(sum, " %q", p.link)
		case unix.S_IFCHR, unix.S_IFBLK:
			fmt.Fprintf(sum, " %d", p.st.Rdev)
		}
		fmt.Fprintln(sum)
		return nil
	})
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// tarFolder writes a root folder as a tar.
func tarFolder(dir string, w *tar.Writer) error {
	names := map[[2]uint64]string{} // first name of a file with several
	return eachPlace(context.Background(), dir, func(p place) error {
		if p.path == "." {
			return nil
		}
		uid, gid := p.owner()
		h := &tar.Header{Name: p.path, Mode: int64(p.st.Mode & 0o7777), Uid: uid, Gid: gid, Linkname: p.link,
			ModTime: time.Unix(p.st.Mtim.Unix()), Format: tar.FormatPAX}
		switch p.st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			h.Typeflag, h.Name = tar.TypeDir, p.path+"/"
		case unix.S_IFLNK:
			h.Typeflag = tar.TypeSymlink
		case unix.S_IFIFO:
			h.Typeflag = tar.TypeFifo
		case unix.S_IFCHR:
			h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(unix.Major(p.st.Rdev)), int64(unix.Minor(p.st.Rdev))
		case unix.S_IFBLK:
			h.Typeflag, h.Devmajor, h.Devminor = tar.TypeBlock, int64(unix.Major(p.st.Rdev)), int64(unix.Minor(p.st.Rdev))
		case unix.S_IFREG:
			h.Typeflag, h.Size = tar.TypeReg, p.st.Size
		}
		if p.st.Nlink > 1 && h.Typeflag == tar.TypeReg {
			id := [2]uint64{p.st.Dev, p.st.Ino}
			if first, ok := names[id]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			} else {
				names[id] = p.path
			}
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", p.full, err)
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		f, err := os.Open(p.full)
		if err != nil {
			return unreadable(dir, err)
		}
		defer f.Close()
		if _, err := io.Copy(w, f); err != nil {
			return fmt.Errorf("%s: %w", p.full, err)
		}
		return nil
	})
}

// stampFolder adds what changes whenever the folder does: among it the times
// of change, which the kernel sets and nobody else. It also returns the last
// of these.
func stampFolder(ctx context.Context, dir string, stamp hash.Hash) (last time.Time, err error) {
	err = eachPlace(ctx, dir, func(p place) error {
		stampOne(stamp, p.path, p.st, &last)
		return nil
	})
	return last, err
}

func stampOne(stamp hash.Hash, path string, st *syscall.Stat_t, last *time.Time) {
	fmt.Fprintf(stamp, "%q %d %d %o %d:%d %d %d %d\n", path, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	if t := time.Unix(st.Ctim.Unix()); t.After(*last) {
		*last = t
	}
}

// remembered is what is kept of a local base, so that the next run need not
// read all of it again.
type remembered struct {
	Path   string `json:"path"`
	Stamp  string `json:"stamp"`
	Digest string `json:"digest"`
}

// settled is how old the last change has to be before a stamp is believed:
// file systems keep times as coarse as two seconds, and a change within one
// such step would not show.
const settled = 4 * time.Second

// digestOf is the digest of what is at path, read anew only if its stamp is
// not that of the last time.
func (s *Store) digestOf(path string, stamp func(hash.Hash) (time.Time, error), content func(hash.Hash) error) (string, error) {
	mark := sha256.New()
	last, err := stamp(mark)
	if err != nil {
		return "", err
	}
	now := remembered{Path: path, Stamp: hex.EncodeToString(mark.Sum(nil))}
	name := sha256.Sum256([]byte(path))
	file := filepath.Join(s.opt.Dir, "local", hex.EncodeToString(name[:16])+".json")
	if data, err := os.ReadFile(file); err == nil && s.opt.Dir != "" {
		var was remembered
		if json.Unmarshal(data, &was) == nil && was.Path == now.Path && was.Stamp == now.Stamp && validDigest(was.Digest) {
			return was.Digest, nil
		}
	}
	sum := sha256.New()
	if err := content(sum); err != nil {
		return "", err
	}
	now.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if s.opt.Dir == "" || time.Since(last).Abs() < settled {
		return now.Digest, nil
	}
	again := sha256.New()
	if _, err := stamp(again); err != nil || hex.EncodeToString(again.Sum(nil)) != now.Stamp {
		return now.Digest, nil // it changed while it was read
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
		// What cannot be kept is read again the next time.
		_ = atomicfile.Write(file, func(w io.Writer) error { return json.NewEncoder(w).Encode(now) })
	}
	return now.Digest, nil
}

func validDigest(s string) bool {
	h, err := v1.NewHash(s)
	return err == nil && strings.HasPrefix(s, "sha256:") && h.Hex != ""
}
