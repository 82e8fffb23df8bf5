package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/host"
)

// Node is what the fence finds where it stands. It is looked up once and
// passed in, so that Resolve can be tested for every node there is.
type Node struct {
	Landlock   host.Landlock
	Mounts     []host.Mount
	Namespaces Namespaces
	Container  string // "apptainer", "docker", ...; "" on a bare host
	UID        int    // effective
	Home       string // of the account, from /etc/passwd; "" if unknown
	Arch       string // Go's name
	Env        []string
	ImageEnv   map[string]bool // names that the image sets
	Workdir    string          // the current folder, or the one asked for
	AskedDir   bool            // Workdir was asked for: it cannot be left for another
	Stdio      []Descriptor    // 0 to 2 and those to keep
	KeepWhy    string          // why those above 2 are kept
	Hold       []string        // folders that are to stay where they are: a session's, masked for others by their place
	Supervisor Supervisor      // of connections, where there is no network namespace

	// Stat follows links, Lstat does not; neither waits for a file server.
	Stat, Lstat func(path string) File
	ReadDir     func(path string) []string // names, nil if it cannot be listed
	Glob        func(pattern string) []string
	CanWrite    func(path string) bool   // as far as permissions go, and their owner can change them
	Real        func(path string) string // without links; the path itself if it cannot be told
	Exe         string                   // the launcher's own file
	// Unsure lists what these could not tell until now: neither that something
	// is there nor that nothing is. Nil where they always can.
	Unsure func() []string

	tops map[string]host.Mount // the last of Mounts at each path, which is the one seen
}

// Namespaces says which namespaces of its own this process has, by trying:
// a nil error is one that is in force. PID is private when the container's
// runtime made one, or a session, which has a parent for its first process.
type Namespaces struct {
	User, Mount, IPC, Net error
	OwnPID                bool // this is the first process of one: it gets a /proc of its own
	PrivatePID            bool
	PrivateIPC            bool
}

// Supervisor says whether the node can have one for a command's connections
// (pkg/supervise). It is asked only where there is no network namespace.
type Supervisor struct {
	OK  bool
	Why error // why not, nil if nobody asked
}

// File is what stat(2) says of a path. The zero File does not exist.
type File struct {
	Exists, Dir, Symlink bool
	Shut                 bool // a folder that only its owner can enter, who is somebody else
	UID                  uint32
}

// Descriptor is an open file that the command will inherit.
type Descriptor struct {
	FD            int
	Dir           bool
	PathOnly      bool // O_PATH: names a file that nobody opened
	File          bool // a file or device, which Landlock checks when it is opened again
	TTY           bool
	Controlling   bool // the terminal of this session
	Network       bool // a socket of any family but AF_UNIX
	UnixAnywhere  bool // a socket of AF_UNIX that can reach other than the one it is connected to
	Readable      bool
	Writable      bool
	Path          string // as /proc/self/fd shows it
	KeptByRequest bool
}

// Inodes of the initial namespaces, include/linux/proc_ns.h. On a node that
// is itself a container the numbers differ and the namespace counts as
// private: what is visible there is that container's alone.
const (
	initialIPC = "ipc:[4026531839]"
	initialPID = "pid:[4026531836]"
)

// Look fills a Node from the process and the node it runs on. keep are
// descriptors above 2 that the command shall inherit.
func Look(ns Namespaces, keep []int) (Node, error) {
	mounts, err := host.Mounts()
	if err != nil {
		return Node{}, err
	}
	container, err := host.Container()
	if err != nil {
		return Node{}, err
	}
	var unsure []string
	// A path that cannot be looked at is not one that is absent: it would go
	// unhidden. Absent is what the command cannot reach either.
	note := func(p string, err error) bool {
		switch {
		case err == nil:
			return true
		case errors.Is(err, unix.EACCES) && !shutByUs(p), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		default:
			unsure = append(unsure, fmt.Sprintf("%s (%v)", p, err))
		}
		return false
	}
	look := func(p string, flags int) File {
		f, err := stat(p, flags)
		note(p, err)
		return f
	}
	n := Node{
		Landlock:   host.DetectLandlock(),
		Mounts:     mounts,
		Namespaces: ns,
		Container:  container,
		UID:        os.Geteuid(),
		Arch:       arch,
		Env:        os.Environ(),
		Stat:       func(p string) File { return look(p, 0) },
		Lstat:      func(p string) File { return look(p, unix.AT_SYMLINK_NOFOLLOW) },
		Glob:       func(p string) []string { m, _ := filepath.Glob(p); return m },
		CanWrite:   canWrite,
		Real: func(p string) string {
			real, err := filepath.EvalSymlinks(p)
			if !note(p, err) {
				return p
			}
			return real
		},
		Unsure: func() []string { return unsure },
	}
	if n.Exe, err = os.Executable(); err != nil {
		return Node{}, fmt.Errorf("finding out where fence lies: %w", err)
	}
	n.ReadDir = func(p string) []string {
		names, err := readDir(p)
		note(p, err)
		return names
	}
	if n.Home, err = home(caller()); err != nil {
		return Node{}, fmt.Errorf("looking up this account's home: %w", err)
	}
	n.Namespaces.PrivatePID = private("/proc/self/ns/pid", initialPID)
	n.Namespaces.PrivateIPC = n.Namespaces.PrivateIPC || private("/proc/self/ns/ipc", initialIPC)
	n.Workdir = cwd()
	if n.Container != "" {
		n.ImageEnv = imageEnv()
	}
	for _, fd := range append([]int{0, 1, 2}, keep...) {
		d, err := describe(fd)
		if err == unix.EBADF {
			continue // closed
		}
		if err != nil {
			return Node{}, fmt.Errorf("descriptor %d: %w", fd, err)
		}
		d.KeptByRequest = fd > 2
		n.Stdio = append(n.Stdio, d)
	}
	return n, nil
}

// cwd is the kernel's answer, without links: what $PWD says may lead through
// one into a hidden folder. "" when the folder cannot be named from here.
func cwd() string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getcwd(buf)
	if err != nil || n < 2 || buf[0] != '/' {
		return ""
	}
	return string(buf[:n-1])
}

func private(link, initial string) bool {
	name, err := os.Readlink(link)
	return err == nil && name != initial
}

// stat asks without waiting for a file server and without mounting anything:
// a hidden path may lie on a filesystem that does not answer.
func stat(path string, flags int) (File, error) {
	var st unix.Statx_t
	flags |= unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_UID, &st); err != nil {
		return File{}, err
	}
	kind := st.Mode & unix.S_IFMT
	// With an access list the group's bits stand for the most that it gives.
	shut := kind == unix.S_IFDIR && st.Mode&0o011 == 0 && int(st.Uid) != os.Geteuid() && os.Geteuid() != 0
	return File{Exists: true, Dir: kind == unix.S_IFDIR, Symlink: kind == unix.S_IFLNK, Shut: shut, UID: st.Uid}, nil
}

func readDir(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// shutByUs reports whether the folder that keeps us from p is our own: the
// command can open it again (chmod).
func shutByUs(p string) bool {
	for {
		if f, err := stat(p, 0); err == nil {
			return int(f.UID) == os.Geteuid()
		}
		if p == "/" || p == "." {
			return false
		}
		p = filepath.Dir(p)
	}
}

// canWrite is true unless the permissions, or a read-only mount, forbid it.
// An owner can change the permissions.
func canWrite(path string) bool {
	err := unix.Access(path, unix.W_OK)
	if f, _ := stat(path, 0); err == unix.EACCES && f.Exists && int(f.UID) == os.Geteuid() {
		return true
	}
	return err != unix.EACCES && err != unix.EROFS && err != unix.ENOENT && err != unix.ENOTDIR
}

func describe(fd int) (Descriptor, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Descriptor{}, err
	}
	d := Descriptor{FD: fd}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		d.Dir = true
	case unix.S_IFREG, unix.S_IFBLK:
		d.File = true
	case unix.S_IFCHR:
		d.File = true
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		d.TTY = err == nil
		_, err = unix.IoctlGetInt(fd, unix.TIOCGSID) // ENOTTY for any other terminal
		d.Controlling = err == nil
	case unix.S_IFSOCK:
		family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		d.Network = err != nil || family != unix.AF_UNIX
		kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		_, unconnected := unix.Getpeername(fd)
		d.UnixAnywhere = !d.Network && (err != nil || kind == unix.SOCK_DGRAM || unconnected != nil)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return Descriptor{}, err
	}
	d.PathOnly = flags&unix.O_PATH != 0
	mode := flags & unix.O_ACCMODE
	d.Readable = mode == unix.O_RDONLY || mode == unix.O_RDWR
	d.Writable = mode == unix.O_WRONLY || mode == unix.O_RDWR
	d.Path, _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return d, nil
}

// home is the account's folder in /etc/passwd: getpwuid(3) without the name
// services, which a static program cannot have. "" if it is not there.
func home(uid int) (string, error) {
	data, err := os.ReadFile("/etc/passwd")
	if errors.Is(err, os.ErrNotExist) {
		return "", nil // a container without accounts
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= 6 && f[2] == strconv.Itoa(uid) {
			return f[5], nil
		}
	}
	return "", nil
}

// imageEnv is the set of names that the image's own scripts export. The
// values are the environment's: the runtime ran the scripts before us.
func imageEnv() map[string]bool {
	names := map[string]bool{}
	files, _ := filepath.Glob("/.singularity.d/env/*.sh")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
			if name, _, ok := strings.Cut(line, "="); ok && isName(name) {
				names[name] = true
			}
		}
	}
	return names
}

func isName(s string) bool {
	for i, c := range s {
		if !(c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return s != ""
}
