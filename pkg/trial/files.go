package trial

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// pack adds what is in a folder to a tar stream, below the name at. Links stay
// links: what a task's folder links to may be the caller's. Modes are those of a
// checkout under umask 022, whatever the caller's is, and execute names files
// that can be started, whatever theirs.
func pack(out *tar.Writer, dir, at string, execute ...string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, x := range execute { // as chmod does it
		if to, err := root.Readlink(x); err == nil {
			execute = append(execute, path.Join(path.Dir(x), to))
		}
	}
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: path.Join(at, name), Mode: 0o644, ModTime: info.ModTime(), Format: tar.FormatPAX}
		if info.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
		for _, x := range execute {
			if name == x {
				h.Mode = 0o755
			}
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
			return out.WriteHeader(h)
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = root.Readlink(name); err != nil {
				return err
			}
			return out.WriteHeader(h)
		case 0:
		default: // sockets and the like are nothing that a task is made of
			return nil
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err = io.CopyN(out, f, h.Size)
		return err
	})
}

// entry is one file or folder of a stream that is made here.
type entry struct {
	name, text string // a name that ends in / is a folder
	mode       int64
}

// add adds them to a tar stream.
func add(out *tar.Writer, entries ...entry) error {
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.text)), ModTime: time.Now()}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.WriteString(out, e.text); err != nil {
			return err
		}
	}
	return nil
}

// most is how much of a container's files comes to the caller's disk.
type most struct {
	file  int64 // bytes of a file; what is over is cut, and a line says so
	all   int64 // bytes together
	read  int64 // bytes that are asked for, those included that are cut: a file with holes has no end
	files int
}

// Of the logs a person reads both ends at most; artifacts are whole or not there.
var (
	logsMost      = most{file: 64 << 20, all: 512 << 20, read: 4 << 30, files: 20_000}
	artifactsMost = most{file: 0, all: 4 << 30, read: 4 << 30, files: 200_000}
)

// took is what unpack made of a stream.
type took struct {
	files int
	bytes int64
	read  int64    // what was asked for, see most
	left  []string // what was left out or cut, one line each
	links []string // names of those that are not here
}

var errTooMuch = errors.New("it is more than is taken out of a container")

// unpack writes a stream that came out of a container below a folder. The names
// were checked (session.Client.Get), and are not believed: nothing is written
// outside of dir, no link is made or followed, and no file is written over.
// What skip says yes to is passed over. All that is taken, and links, go to
// also, which may be nil.
func unpack(stream io.Reader, dir string, m most, skip func(name string) bool, also *tar.Writer) (t took, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return t, err
	}
	defer root.Close()
	for in := tar.NewReader(stream); ; {
		h, err := in.Next()
		if err == io.EOF {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) || name == "." || skip != nil && skip(name) {
			continue
		}
		if t.files++; t.files > m.files {
			return t, fmt.Errorf("%w: over %d files", errTooMuch, m.files)
		}
		content := io.Reader(in)
		if also != nil {
			if err := also.WriteHeader(h); err != nil {
				return t, err
			}
			content = io.TeeReader(in, also)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if err := root.MkdirAll(name, 0o755); err != nil {
				return t, err
			}
			continue
		case tar.TypeReg:
		default:
			t.links = append(t.links, name)
			t.left = append(t.left, fmt.Sprintf("%s is a link to %s", name, h.Linkname))
			continue
		}
		if t.read += h.Size; m.read > 0 && t.read > m.read {
			return t, fmt.Errorf("%w: with %.200q, %d bytes, over %d MB", errTooMuch, name, h.Size, m.read>>20)
		}
		size := h.Size
		if m.file > 0 {
			size = min(size, m.file)
		}
		if t.bytes += size; t.bytes > m.all {
			return t, fmt.Errorf("%w: over %d MB", errTooMuch, m.all>>20)
		}
		mode := fs.FileMode(0o644)
		if h.Mode&0o111 != 0 {
			mode = 0o755
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return t, err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return t, err
		}
		_, err = io.CopyN(f, content, size)
		if over := h.Size - size; err == nil && over > 0 {
			t.left = append(t.left, fmt.Sprintf("%s was cut, %d bytes are not here", name, over))
			_, err = fmt.Fprintf(f, "\n[rollout: cut here, %d more bytes were written]\n", over)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return t, err
		}
	}
}

// thereIn says of a name whether it is in a folder of logs already: the host's
// own records stay.
func thereIn(dir string) func(name string) bool {
	return func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
}

// salvage copies what can be had of a container's folder when the container is
// gone: from the folder that its overlay wrote to, where whatever ran in it chose
// names and links.
func salvage(upper, folder, to string) error {
	if upper == "" {
		return errors.New("there is no folder of what it wrote")
	}
	from, err := os.OpenRoot(upper)
	if err != nil {
		return err
	}
	defer from.Close()
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		err := fs.WalkDir(from.FS(), folder, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			f, err := from.Open(name) // a link that leads out, put there meanwhile, is an error
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil || !info.Mode().IsRegular() {
				return err
			}
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, folder+"/"), Mode: 0o644, Size: info.Size()}); err != nil {
				return err
			}
			_, err = io.CopyN(out, f, info.Size())
			return err
		})
		w.CloseWithError(errors.Join(err, out.Close()))
	}()
	_, err = unpack(r, to, logsMost, thereIn(to), nil)
	r.CloseWithError(io.ErrClosedPipe)
	return err
}

// put uploads what fill writes.
func put(ctx context.Context, b Box, domain, dir string, fill func(*tar.Writer) error) error {
	ctx, cancel := context.WithTimeout(ctx, harness)
	defer cancel()
	r, w := io.Pipe()
	filled := make(chan error, 1)
	go func() {
		out := tar.NewWriter(w)
		err := fill(out)
		if err == nil {
			err = out.Close()
		}
		w.CloseWithError(err)
		filled <- err
	}()
	err := b.Put(ctx, domain, dir, r)
	r.CloseWithError(io.ErrClosedPipe) // what was not read is not wanted
	if wrote := <-filled; wrote != nil && !errors.Is(wrote, io.ErrClosedPipe) {
		return wrote // what could not be read here explains what came there
	}
	return err
}

// get downloads paths below a folder, and gives the stream to take.
func get(ctx context.Context, b Box, domain, dir string, paths []string, take func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, harness)
	defer cancel()
	r, w := io.Pipe()
	got := make(chan error, 1)
	go func() {
		err := b.Get(ctx, domain, dir, paths, w)
		w.CloseWithError(err)
		got <- err
	}()
	err := take(r)
	if err != nil {
		cancel()
	} else {
		_, _ = io.Copy(io.Discard, r) // what stands behind the end
	}
	r.CloseWithError(io.ErrClosedPipe)
	if sent := <-got; err == nil {
		err = sent
	}
	return err
}
