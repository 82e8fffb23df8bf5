package step

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// inFence is where fence and this binary are while a command runs.
const inFence = "/.fence"

// hostname is what a command sees: BuildKit's, for there it could be used too.
const hostname = "buildkitsandbox"

// stage is a root folder with what is mounted in it for as long as a command
// runs, and what was made in it to have something to mount on.
type stage struct {
	root   string
	dir    string   // for files to be bound
	mounts []string // inside the root, in order
	stubs  []string // inside the root, in order; removed again if nothing was put there

	mounted map[uint64]bool      // st_dev of what the Dockerfile mounts, and whether it is read-only
	old     map[inode]tree.Owner // what is noted of links and the like there
}

// on makes sure of a path in the root, a folder or an empty file, and gives it
// with its links resolved, as seen from this process.
func (g *stage) on(target string, folder bool) (string, error) {
	parts := strings.Split(strings.Trim(path.Clean(target), "/"), "/")
	for i := range parts {
		p := "/" + path.Join(parts[:i+1]...)
		fd, err := inRoot(g.root, p, unix.O_PATH)
		if err == nil {
			real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			unix.Close(fd)
			if err != nil {
				return "", err
			}
			if i == len(parts)-1 {
				return real, nil
			}
			continue
		}
		if err != unix.ENOENT {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		dir, err := inRoot(g.root, path.Dir(p), unix.O_PATH)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path.Dir(p), err)
		}
		if folder || i < len(parts)-1 {
			err = unix.Mkdirat(dir, parts[i], 0o755)
		} else {
			err = unix.Mknodat(dir, parts[i], unix.S_IFREG|0o644, 0)
		}
		if err == nil {
			err = writeNote(path.Join(proc(dir), parts[i]), tree.Owner{}) // root's, whoever the step's user is
		}
		unix.Close(dir)
		if err == unix.EEXIST { // a link that leads nowhere
			return "", fmt.Errorf("%s: is a link that leads nowhere", p)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", p, err)
		}
		g.stubs = append(g.stubs, p)
	}
	return g.on(target, folder) // now it is there
}

// mount mounts at target; data is of the filesystem.
func (g *stage) mount(source, target, fstype string, flags uintptr, data string) (string, error) {
	folder := true
	if flags&unix.MS_BIND != 0 {
		info, err := os.Stat(source)
		if err != nil {
			return "", err
		}
		folder = info.IsDir()
	}
	at, err := g.on(target, folder)
	if err != nil {
		return "", err
	}
	if err := unix.Mount(source, at, fstype, flags, data); err != nil {
		return "", fmt.Errorf("mounting %s at %s: %w", source, target, err)
	}
	g.mounts = append(g.mounts, target)
	return at, nil
}

// readOnly makes what is mounted at a path (of this process) read-only.
func readOnly(at string) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("making %s read-only: %w", at, err)
	}
	return nil
}

// file binds a file of these bytes.
func (g *stage) file(target string, data []byte, mode os.FileMode) (string, error) {
	return g.owned(target, data, mode, tree.Owner{})
}

func (g *stage) owned(target string, data []byte, mode os.FileMode, o tree.Owner) (string, error) {
	name := filepath.Join(g.dir, fmt.Sprintf("file%d", len(g.mounts)))
	if err := os.WriteFile(name, data, mode); err != nil {
		return "", err
	}
	if err := os.Chmod(name, mode); err != nil {
		return "", err
	}
	if err := writeNote(name, o); err != nil {
		return "", err
	}
	return g.mount(name, target, "", unix.MS_BIND, "")
}

// system mounts what every command has: /proc, /dev, /sys.
func (g *stage) system() error {
	for _, own := range []string{"/proc", "/dev", "/sys", inFence} {
		switch at, err := g.on(own, true); {
		case err != nil:
			return &Failure{"source", fmt.Sprintf("%v: every step has a folder of its own there", err)}
		case at != filepath.Join(g.root, own):
			return &Failure{"source", fmt.Sprintf("%s is a link in the image: every step has a folder of its own there", own)}
		}
	}
	if _, err := g.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := g.devices(); err != nil {
		return err
	}
	if at, err := g.mount("/sys", "/sys", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	} else if err := readOnly(at); err != nil {
		return err
	}
	return nil
}

// names binds the names of hosts, and the servers that know more.
func (g *stage) names() error {
	resolv, _ := os.ReadFile("/etc/resolv.conf")
	names := "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	for target, data := range map[string][]byte{"/etc/resolv.conf": resolv, "/etc/hosts": []byte(names)} {
		at, err := g.file(target, data, 0o644)
		if err == nil {
			err = readOnly(at)
		} else if strings.HasSuffix(err.Error(), "leads nowhere") {
			continue // as with systemd-resolved's link: the image's own affair
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tools mounts the two programs that start the command, and what they read:
// a policy that opens what is mounted at opened, and the configuration of
// package managers.
func (g *stage) tools(r *Run, opened []string, asRoot bool) error {
	at, err := g.mount("sifbuild", inFence, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64m")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(at, "step.toml"), stepPolicy(opened, asRoot), 0o644); err != nil {
		return err
	}
	for name, source := range map[string]string{"fence": r.Fence, "sifbuild": r.Self} {
		p := filepath.Join(at, name)
		if err := os.WriteFile(p, nil, 0o755); err != nil {
			return err
		}
		err := unix.Mount(source, p, "", unix.MS_BIND, "")
		if name == "sifbuild" && err == unix.ENOENT {
			err = copySelf(p) // a new version has taken its place since the run began
		}
		if err != nil {
			return fmt.Errorf("binding %s: %w", source, err)
		}
	}
	for _, f := range r.Config {
		if err := g.config(at, f); err != nil {
			return err
		}
	}
	return readOnly(at)
}

// copySelf copies this program, also if it has no name any more.
func copySelf(to string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// config links a file of fence's folder, which lies at the path fence, to
// where a program looks for it: if there is such a folder, for then the image
// has the program.
func (g *stage) config(fence string, f File) error {
	if f.Make {
		if _, err := g.on(path.Dir(f.Path), true); err != nil {
			return nil // something else is there
		}
	}
	dir, err := inRoot(g.root, path.Dir(f.Path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	name := strings.ReplaceAll(strings.Trim(f.Path, "/"), "/", "-")
	if err := os.WriteFile(filepath.Join(fence, name), f.Data, os.FileMode(f.Mode)); err != nil {
		return err
	}
	switch err := unix.Symlinkat(inFence+"/"+name, dir, path.Base(f.Path)); err {
	case nil:
		g.stubs = append(g.stubs, f.Path)
		return nil
	case unix.EEXIST, unix.EROFS:
		return nil // the image's own, or what the Dockerfile mounts there
	default:
		return fmt.Errorf("%s: %w", f.Path, err)
	}
}

// devices makes a /dev of the usual devices.
func (g *stage) devices() error {
	at, err := g.mount("sifbuild", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755,size=64k,nr_inodes=200")
	if err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		p := filepath.Join(at, name)
		if err := os.WriteFile(p, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, p, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding /dev/%s: %w", name, err)
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx", "core": "/proc/kcore"} {
		if err := os.Symlink(to, filepath.Join(at, name)); err != nil {
			return err
		}
	}
	for _, m := range []struct{ name, kind, data string }{
		{"pts", "devpts", "newinstance,ptmxmode=0666,mode=0620"},
		{"shm", "tmpfs", "mode=1777,size=65536k"},
		{"mqueue", "mqueue", ""},
	} {
		p := filepath.Join(at, m.name)
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("sifbuild", p, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC, m.data); err != nil {
			return fmt.Errorf("mounting /dev/%s: %w", m.name, err)
		}
	}
	return nil
}

// enter makes the root folder this process's own.
func (g *stage) enter() error {
	if err := os.Chdir(g.root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root folder: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root folder: %w", err)
	}
	g.root = "/"
	return os.Chdir("/")
}

// leave takes away what was mounted, and the stubs that nobody has filled.
func (g *stage) leave() {
	for _, m := range slices.Backward(g.mounts) {
		unix.Unmount(m, unix.MNT_DETACH) // it may have been removed with its parent
	}
	for _, p := range slices.Backward(g.stubs) {
		info, err := os.Lstat(p)
		if err != nil {
			continue
		}
		to, _ := os.Readlink(p)
		if info.IsDir() || info.Mode().IsRegular() && info.Size() == 0 || strings.HasPrefix(to, inFence+"/") {
			os.Remove(p)
		}
	}
}
