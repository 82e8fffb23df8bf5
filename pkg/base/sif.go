package base

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/registry"
	"fence/pkg/sif"
)

func isSIF(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 41)
	_, err = io.ReadFull(f, head)
	return err == nil && string(head[32:]) == "SIF_MAGIC" || strings.HasSuffix(file, ".sif")
}

// image is the base that a SIF is.
func (s *Store) image(ctx context.Context, file string, platform v1.Platform) (Base, error) {
	img, err := sif.Open(file)
	if err != nil {
		return Base{}, err
	}
	defer img.Close()
	if img.Arch != platform.Architecture {
		return Base{}, s.errPlatform(platform, []string{"linux/" + img.Arch})
	}
	digest, err := s.digestOf(file, func(stamp hash.Hash) (last time.Time, err error) {
		st, err := os.Stat(file)
		if err == nil {
			stampOne(stamp, ".", st.Sys().(*syscall.Stat_t), &last)
		}
		return last, err
	}, func(sum hash.Hash) error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, reader{ctx, f})
		return err
	})
	if err != nil {
		return Base{}, err
	}
	b := Base{Digest: digest, Config: img.Config}
	if !img.HasConfig {
		b.Config, b.Warnings = guessed(img)
	}
	b.layers = func(context.Context) ([]Layer, error) {
		return []Layer{{Digest: digest, Open: func() (io.ReadCloser, error) {
			img, err := sif.Open(file)
			if err != nil {
				return nil, err
			}
			return piped(func(w *tar.Writer) error {
				defer img.Close()
				return tarImage(img, w)
			}), nil
		}}}, nil
	}
	return b, nil
}

// reader ends when its context does.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, r.ctx.Err()
	}
	return r.r.Read(p)
}

// runtimeFile says whether a path is there for Apptainer, and no part of what
// was built.
func runtimeFile(e sif.Entry) bool {
	const dir = ".singularity.d"
	return e.Path == dir || (!strings.Contains(e.Path, "/") && strings.HasPrefix(path.Clean(strings.TrimPrefix(e.Link, "/")), dir+"/"))
}

// tarImage writes an image's root as a tar, with the owners and devices that
// are noted beside it.
func tarImage(img *sif.Image, w *tar.Writer) error {
	owners := map[string]sif.Owner{}
	for _, o := range img.Owners {
		owners[o.Path] = o
	}
	names := map[uint32]string{}
	err := img.Walk(func(e sif.Entry) error {
		if e.Path == "." {
			return nil
		}
		if runtimeFile(e) {
			return fs.SkipDir
		}
		h := &tar.Header{Name: e.Path, Mode: permissions(e.Mode), Linkname: e.Link, ModTime: e.MTime, Format: tar.FormatPAX,
			Devmajor: int64(e.Major), Devminor: int64(e.Minor), Uid: owners[e.Path].UID, Gid: owners[e.Path].GID}
		switch e.Mode.Type() {
		case fs.ModeDir:
			h.Typeflag, h.Name = tar.TypeDir, e.Path+"/"
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
		case fs.ModeNamedPipe:
			h.Typeflag = tar.TypeFifo
		case fs.ModeDevice | fs.ModeCharDevice:
			h.Typeflag = tar.TypeChar
		case fs.ModeDevice:
			h.Typeflag = tar.TypeBlock
		case fs.ModeSocket:
			return nil
		default:
			h.Typeflag, h.Size = tar.TypeReg, e.Size
			if first, ok := names[e.Inode]; ok {
				h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			} else {
				names[e.Inode] = e.Path
			}
		}
		if e.Mode&fs.ModeDevice != 0 {
			delete(owners, e.Path) // it is said here
		}
		if err := w.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %s: %w", img.Path, e.Path, err)
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		r, err := e.Open()
		if err == nil {
			_, err = io.Copy(w, r)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, o := range img.Owners {
		kind := map[string]byte{"c": tar.TypeChar, "b": tar.TypeBlock}[o.Device]
		if _, missing := owners[o.Path]; kind == 0 || !missing {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: o.Path, Typeflag: kind, Mode: int64(o.Mode & 0o7777), Uid: o.UID, Gid: o.GID,
			Devmajor: int64(o.Major), Devminor: int64(o.Minor), Format: tar.FormatPAX}); err != nil {
			return fmt.Errorf("%s: %s: %w", img.Path, o.Path, err)
		}
	}
	return nil
}

// permissions are a mode's bits as in stat(2).
func permissions(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for mode, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&mode != 0 {
			bits |= bit
		}
	}
	return bits
}

// The lines of an environment script that are understood: those of Apptainer's
// builds from Docker images, in which a host's variable wins, and our own.
var (
	dockerLine = regexp.MustCompile(`^export ([A-Za-z_][A-Za-z0-9_]*)="(?:\$\{([A-Za-z_][A-Za-z0-9_]*):-"((?:[^"\\$` + "`" + `]|\\.)*)"\}|((?:[^"\\$` + "`" + `]|\\.)*))"$`)
	ownLine    = regexp.MustCompile(`^export ([A-Za-z_][A-Za-z0-9_]*)='([^']*)'$`)
	escaped    = regexp.MustCompile(`\\(.)`)
)

// guessed is the configuration of an image that does not say it: its
// environment, as far as the scripts say so plainly, and its labels.
func guessed(img *sif.Image) (v1.Config, []string) {
	var c v1.Config
	warnings := []string{"it has no oci-config.json: its ENTRYPOINT, CMD, WORKDIR and USER are not known"}
	for label, value := range img.Labels {
		if !strings.HasPrefix(label, "org.label-schema.") { // Apptainer's own, about its build
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[label] = value
		}
	}
	for _, script := range []string{"10-docker2singularity.sh", "90-environment.sh"} {
		name := ".singularity.d/env/" + script
		data, err := readSmall(img, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			warnings = append(warnings, fmt.Sprintf("its environment is not known: %v", err))
			continue
		}
		env, odd := environment(string(data))
		c.Env = append(c.Env, env...)
		if odd > 0 {
			warnings = append(warnings, fmt.Sprintf("%d lines of its %s are more than plain assignments, and are left out", odd, name))
		}
	}
	return c, warnings
}

// readSmall reads a script of the image.
func readSmall(img *sif.Image, name string) (data []byte, err error) {
	err = fs.ErrNotExist
	walk := img.Walk(func(e sif.Entry) error {
		switch {
		case e.Path == name && e.Mode.IsRegular() && e.Size <= registry.DocumentLimit:
			var r io.Reader
			if r, err = e.Open(); err == nil {
				data, err = io.ReadAll(r)
			}
			return errStop
		case e.Mode.IsDir() && e.Path != "." && e.Path != name && !strings.HasPrefix(name, e.Path+"/"):
			return fs.SkipDir
		}
		return nil
	})
	if walk != nil && walk != errStop {
		err = walk
	}
	return data, err
}

var errStop = errors.New("found")

// environment is what a script sets by plain assignments, and how many lines
// say something else.
func environment(script string) (env []string, odd int) {
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if m := ownLine.FindStringSubmatch(line); m != nil {
			env = append(env, m[1]+"="+m[2])
		} else if m := dockerLine.FindStringSubmatch(line); m != nil && (m[2] == "" || m[2] == m[1]) {
			env = append(env, m[1]+"="+escaped.ReplaceAllString(m[3]+m[4], "$1"))
		} else {
			odd++
		}
	}
	return env, odd
}
