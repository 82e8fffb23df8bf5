package step

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/sif"
	"fence/pkg/tree"
)

// initMain is the first process of a step's namespaces.
func initMain() int {
	unix.CloseOnExec(fdSpec)
	unix.CloseOnExec(fdResult)
	unix.Umask(0)
	var s Spec
	spec := json.NewDecoder(os.NewFile(fdSpec, "spec"))
	if err := spec.Decode(&s); err != nil {
		return 1 // the caller is gone
	}
	go func() {
		// Nothing more is said: what comes is the end of the one who asked.
		spec.Decode(new(any))
		os.Exit(1)
	}()
	r, err := do(s, slices.Contains(os.Args[1:], inHost))
	if err != nil {
		r.Error, r.Kind = err.Error(), "setup"
		var f *Failure
		if errors.As(err, &f) {
			r.Kind = f.Kind
		}
		switch {
		case full(err):
			r.Kind = "disk"
		case errors.Is(err, unix.ENAMETOOLONG):
			r.Kind, r.Error = "source", tooLong(r.Error)
		}
	}
	if err := json.NewEncoder(os.NewFile(fdResult, "result")).Encode(r); err != nil {
		return 1
	}
	return 0
}

// tooLong is an error about a path that no program can name, without most of it.
func tooLong(text string) string {
	if r := []rune(text); len(r) > 300 {
		text = string(r[:200]) + "..." + string(r[len(r)-60:])
	}
	return fmt.Sprintf("a path of %d bytes or more, which no program can open: %s", unix.PathMax, text)
}

// do does a step; sandboxed is whether the node's root folder is not this process's yet.
func do(s Spec, sandboxed bool) (r Result, err error) {
	// What is mounted here is nobody else's.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return r, fmt.Errorf("making the mounts private: %w", err)
	}
	if sandboxed {
		if err := leaveSandbox(inHost); err != nil {
			return r, err
		}
	}
	switch {
	case s.Unpack != nil:
		return unpack(s.Unpack)
	case s.Tar != nil:
		return r, tarLayer(s.Tar)
	case s.Merge != nil:
		return r, tree.Merge(s.Merge.Below, s.Merge.Layers, s.Merge.Out)
	}
	if s.Upper != "" {
		if err := rootLike(cmp.Or(s.Like, s.Lower[0]), s.Upper); err != nil {
			return r, err
		}
	}
	root, err := view(filepath.Join(s.Dir, "view"), s.Lower, s.Upper)
	if err != nil {
		return r, err
	}
	switch {
	case s.Run != nil:
		return run(s, root)
	case s.Copy != nil:
		return copyStep(s, root)
	case s.Workdir != nil:
		return workdir(s.Workdir, root)
	case s.Squash != nil:
		return squash(s, root)
	case s.Look != nil:
		return look(s.Look, root)
	}
	return r, errors.New("BUG: a step of no kind")
}

// view mounts layers, highest first, at an own folder below dir and returns
// where. Short names stand for the layers, for the options of a mount have to
// fit into a page.
func view(dir string, lower []string, upper string) (string, error) {
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", err
	}
	var names []string
	for i, l := range lower {
		name := strconv.Itoa(i)
		if err := os.Symlink(l, filepath.Join(dir, name)); err != nil {
			return "", err
		}
		names = append(names, name)
	}
	options := "userxattr,lowerdir=" + strings.Join(names, ":")
	switch {
	case upper != "":
		work := filepath.Join(dir, "work")
		if err := os.Mkdir(work, 0o700); err != nil {
			return "", err
		}
		if err := os.Symlink(upper, filepath.Join(dir, "upper")); err != nil {
			return "", err
		}
		options += ",upperdir=upper,workdir=work"
	case len(lower) == 1:
		if err := unix.Mount(lower[0], root, "", unix.MS_BIND, ""); err != nil {
			return "", fmt.Errorf("binding %s: %w", lower[0], err)
		}
		return root, nil
	}
	back, err := os.Getwd()
	if err != nil {
		back = "/"
	}
	if err := os.Chdir(dir); err != nil {
		return "", err
	}
	defer os.Chdir(back)
	// The name is how fence knows such a root folder (pkg/host).
	if err := unix.Mount("sifbuild", "root", "overlay", 0, options); err != nil {
		return "", &Failure{"setup", fmt.Sprintf("mounting an overlay of %d layers in %s: %v; the scratch folder must be on a disk of this node that can hold one (ext4, xfs, btrfs; not NFS, Lustre or another overlay): --scratch DIR", len(lower), dir, err)}
	}
	return root, nil
}

// rootLike gives a new layer's top folder what the one below has: overlayfs
// shows the highest.
func rootLike(below, top string) error {
	var st unix.Stat_t
	if err := unix.Stat(below, &st); err != nil {
		return fmt.Errorf("%s: %w", below, err)
	}
	if err := unix.Chmod(top, st.Mode&0o7777); err != nil {
		return fmt.Errorf("%s: %w", top, err)
	}
	if o, ok := noteOf(below); ok {
		if err := writeNote(top, o); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, top, []unix.Timespec{st.Atim, st.Mtim}, 0)
}

func unpack(u *Unpack) (r Result, err error) {
	for i := range u.Streams {
		f := os.NewFile(uintptr(fdStream+i), "layer")
		r.Specials, err = tree.Unpack(f, u.Out, tree.UnpackOptions{Apply: u.Apply, Below: u.Below, Specials: r.Specials})
		// What comes behind the archive's end is read all the same: it counts for its digest.
		if _, err2 := io.Copy(io.Discard, f); err == nil {
			err = err2
		}
		f.Close()
		if err != nil {
			return r, fmt.Errorf("unpacking layer %d of %d: %w", i+1, u.Streams, err)
		}
	}
	return r, nil
}

func tarLayer(t *Tar) error {
	f, err := os.OpenFile(t.Out, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	err = tree.Pack(f, t.Layer, t.Specials, tree.PackOptions{Zstd: true})
	if errors.Is(err, tree.ErrReserved) {
		return &Failure{"source", err.Error()}
	}
	if err != nil {
		return fmt.Errorf("packing a layer: %w", err)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

func copyStep(s Spec, root string) (r Result, err error) {
	c := s.Copy
	q := c.Request
	if c.From != nil {
		from, err := view(filepath.Join(s.Dir, "from"), c.From, "")
		if err != nil {
			return r, err
		}
		q.Root = from
	}
	if c.Select != nil {
		if q.Matches, err = tree.Select(q.Root, *c.Select); err != nil {
			return r, &Failure{"source", err.Error()}
		}
	}
	if c.Chown != "" {
		o, known, err := tree.ResolveOwner(root, c.Chown)
		if err != nil {
			return r, &Failure{"user", err.Error()}
		}
		if !known {
			r.Warnings = append(r.Warnings, fmt.Sprintf("--chown=%s: the image has no such user or group, so the files are root's", c.Chown))
		}
		q.Owner = &o
	}
	r.Specials, err = tree.Copy(root, q)
	return r, refused(err)
}

// refused is an error for the Dockerfile's sake, unless the disk is full.
func refused(err error) error {
	if err == nil || full(err) {
		return err
	}
	return &Failure{"source", err.Error()}
}

func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func workdir(w *Workdir, root string) (r Result, err error) {
	var owner *tree.Owner
	if w.User != "" {
		// As for --chown: a number alone is its own group, too.
		o, _, err := tree.ResolveOwner(root, w.User)
		if err != nil {
			return r, &Failure{"user", err.Error()}
		}
		owner = &o
	}
	return r, refused(tree.Mkdir(root, w.Path, owner))
}

// look finds commands as a shell would, inside the root.
func look(l *Look, root string) (r Result, err error) {
	for _, name := range l.Commands {
		found := false
		for _, dir := range strings.Split(l.Path, ":") {
			if strings.HasPrefix(name, "/") {
				dir = ""
			}
			found = found || executable(root, filepath.Join("/", dir, name))
		}
		if !found {
			r.Missing = append(r.Missing, name)
		}
	}
	return r, nil
}

func executable(root, name string) bool {
	fd, err := inRoot(root, name, unix.O_PATH)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}

// inRoot opens a path as a process would whose root folder is root.
func inRoot(root, name string, flags uint64) (int, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	name = strings.TrimLeft(name, "/")
	if name == "" {
		name = "."
	}
	return unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
}

// command is this binary, started again in the step's root folder.
func command(arg string, log *os.File) *exec.Cmd {
	cmd := exec.Command(inFence + "/sifbuild") // not by way of /proc, which is in the root folder by now
	cmd.Args = []string{arg}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

// squash adds what Apptainer needs and packs the view, owners apart.
func squash(s Spec, root string) (r Result, err error) {
	q := s.Squash
	if err := sif.Add(root, sif.Overlay(q.Config, q.Labels)); err != nil {
		return r, err
	}
	if r.Owners, err = tree.Owners(root, q.Specials); err != nil {
		return r, err
	}
	o := sif.PackOptions{Processors: q.CPUs, MemMiB: q.MemMiB}
	for _, sp := range q.Specials {
		if _, err := os.Lstat(filepath.Join(root, sp.Path)); sp.Device != "" && err != nil {
			o.Pseudo = append(o.Pseudo, fmt.Sprintf("%q %s %o 0 0 %d %d", sp.Path, sp.Device, sp.Mode, sp.Major, sp.Minor))
			r.Specials = append(r.Specials, sp)
		}
	}
	switch err := sif.Pack(context.Background(), root, q.Out, o); {
	case errors.Is(err, sif.ErrDiskFull):
		return r, &Failure{"disk", err.Error()}
	case errors.Is(err, sif.ErrStarved):
		return r, &Failure{"starved", err.Error()}
	case err != nil:
		return r, &Failure{"pack", err.Error()}
	}
	return r, nil
}
