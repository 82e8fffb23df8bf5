package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
)

// Sandbox is the engine of a node that allows user namespaces to Apptainer
// alone. One container of it lives as long as the engine: its root folder is
// an empty one, the node's is mounted in it, and a process of this program
// there (serveMain) begins what it is asked for. A step leaves that root folder
// before it does anything, so that all is as with Native.
//
// A step ends with whoever asked for it, since that is the other end of its
// Spec; the container ends with the engine.
type Sandbox struct {
	said apptainer.Tail
	gone chan struct{} // closed when the container has ended
	end  error         // how, if it was not asked to

	kill context.CancelCauseFunc
	sock *net.UnixConn
}

const (
	inHost   = "/.sifbuild"      // where the container has the node's root folder
	inSelf   = "/.sifbuild-self" // and a copy of this program, if that has no name any more
	argServe = "step-serve"
	fdServe  = 3 // serveMain's socket
)

// beginning is a request to serveMain. Its descriptors are: what the step
// says, where its end is reported, and the files of first.
type beginning struct {
	Path string // the variable
	Net  bool
}

// ending is how a first process ended: why it was not started, or an error of
// exec.Cmd's Wait.
type ending struct{ Refused, Error string }

// sandboxRoot is what the container's root folder has, so that Apptainer has
// nothing to add.
var sandboxRoot = []string{inHost, "/dev", "/proc", "/sys", "/tmp", "/etc", "/.singularity.d"}

// Enter starts the container with the Apptainer of that path. dir is an empty
// folder of the caller's own.
func Enter(ctx context.Context, path, dir string) (*Sandbox, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	root, own := filepath.Join(dir, "root"), filepath.Join(dir, "own")
	for _, d := range sandboxRoot {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return nil, fmt.Errorf("the root folder of a container: %w", err)
		}
	}
	if err := os.Mkdir(own, 0o700); err != nil {
		return nil, fmt.Errorf("a folder for Apptainer: %w", err)
	}
	program := inHost + self
	if _, err := os.Stat(self); err != nil {
		// A new version has taken its place since the run began.
		program = inSelf
		if err := copySelf(filepath.Join(root, inSelf)); err != nil {
			return nil, fmt.Errorf("a copy of this program: %w", err)
		}
	}
	ours, theirs, err := packets()
	if err != nil {
		return nil, err
	}
	b := &Sandbox{said: apptainer.Tail{Most: 16 << 10}, gone: make(chan struct{}), sock: ours}
	cmd := exec.Command(path, "--silent", "exec", "--writable",
		"--cleanenv", "--no-eval", "--no-umask",
		"--no-home", "--no-mount", "tmp,home,cwd,hostfs,bind-paths", "--bind", "/:"+inHost, "--pwd", "/",
		root, program, argServe)
	cmd.Env, cmd.Dir = apptainer.Env(own), "/"
	cmd.ExtraFiles = []*os.File{theirs}
	life, kill := context.WithCancelCause(context.Background())
	b.kill = kill
	go func() {
		defer close(b.gone)
		end, err := apptainer.Run(life, cmd, apptainer.Start{Said: &b.said, Given: []io.Closer{theirs}})
		b.end = errors.Join(end, err)
	}()
	ctx, stop := context.WithTimeoutCause(ctx, enterTimeout, fmt.Errorf("Apptainer has not started a container within %v", enterTimeout))
	defer stop()
	defer context.AfterFunc(ctx, func() { kill(context.Cause(ctx)) })()
	// It answers when it is up; if it ends before, so does the socket.
	if _, err := b.sock.Read(make([]byte, 1)); err != nil {
		b.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		why := apptainer.LastWords(b.said.String(), b.end)
		if strings.Contains(why, program) {
			why = "the node's files are not mounted in it: the site's apptainer.conf must not have \"user bind control = no\" (" + why + ")"
		}
		return nil, &Failure{"setup", fmt.Sprintf("starting a container for steps (%s): %s", path, why)}
	}
	return b, nil
}

// enterTimeout is for Apptainer's start, which takes a fraction of a second;
// closeTimeout for its end.
const enterTimeout, closeTimeout = 3 * time.Minute, 10 * time.Second

// packets is a pair of sockets; the second is to be inherited.
func packets() (*net.UnixConn, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "steps"), os.NewFile(uintptr(pair[1]), "steps")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}

// Close ends the container; no step must be under way.
func (b *Sandbox) Close() {
	b.sock.Close() // it ends by itself then
	defer b.kill(nil)
	select {
	case <-b.gone:
	case <-time.After(closeTimeout):
		b.kill(errors.New("it did not end"))
		<-b.gone
	}
}

// Gone says that the container has ended.
func (b *Sandbox) Gone() bool {
	select {
	case <-b.gone:
		return true
	default:
		return false
	}
}

func (b *Sandbox) start(f first) (running, error) {
	endedR, endedW, err := os.Pipe()
	if err != nil {
		return running{}, err
	}
	defer endedW.Close()
	msg, err := json.Marshal(beginning{Path: os.Getenv("PATH"), Net: f.net})
	if err != nil {
		return running{}, err
	}
	fds := []int{int(f.out.Fd()), int(endedW.Fd())}
	for _, file := range f.files {
		fds = append(fds, int(file.Fd()))
	}
	if _, _, err := b.sock.WriteMsgUnix(msg, unix.UnixRights(fds...), nil); err != nil {
		endedR.Close()
		return running{}, b.lost()
	}
	return running{
		kill: func() {}, // the end of its Spec is its end
		gone: b.gone,
		wait: func() error {
			defer endedR.Close()
			var e ending
			switch err := json.NewDecoder(endedR).Decode(&e); {
			case err != nil:
				return b.lost()
			case e.Refused != "":
				return &Failure{"setup", e.Refused}
			case e.Error != "":
				return errors.New(e.Error)
			}
			return nil
		},
	}, nil
}

// lost is the error of a step that could not begin, or go on.
func (b *Sandbox) lost() error {
	<-b.gone
	return &Failure{"engine", "the container that steps begin in has ended: " + apptainer.LastWords(b.said.String(), b.end)}
}

// serveMain begins steps inside the container, until nobody can ask for more.
func serveMain() int {
	// A step gets its own descriptors, and none that Apptainer has left open.
	if err := unix.CloseRange(fdServe, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return complain(os.NewSyscallError("close_range", err))
	}
	if _, err := unix.Write(fdServe, []byte{0}); err != nil {
		return complain(os.NewSyscallError("write", err))
	}
	msg, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4*253)) // SCM_MAX_FD
	for {
		n, k, _, _, err := unix.Recvmsg(fdServe, msg, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return complain(os.NewSyscallError("recvmsg", err))
		case n == 0:
			return 0
		}
		files, err := received(oob[:k])
		if err != nil || len(files) < 2 {
			return complain(fmt.Errorf("a request without descriptors: %w", err))
		}
		var q beginning
		if err := json.Unmarshal(msg[:n], &q); err != nil {
			return complain(fmt.Errorf("a request: %w", err))
		}
		go serve(q, files[0], files[1], files[2:])
	}
}

// serve is one step.
func serve(q beginning, out, ended *os.File, files []*os.File) {
	defer ended.Close()
	cmd := first{net: q.Net, out: out, files: files}.command(inHost)
	cmd.Env = []string{"PATH=" + q.Path}
	err := cmd.Start()
	for _, f := range append(files, out) {
		f.Close()
	}
	var e ending
	if err != nil {
		e.Refused = refusedUserns("a step", err).Error()
	} else if err := cmd.Wait(); err != nil {
		e.Error = err.Error()
	}
	json.NewEncoder(ended).Encode(e)
}

// received are the descriptors of a message.
func received(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "given"))
		}
	}
	return files, nil
}

// leaveSandbox makes the node's root folder, which is mounted at host, this
// mount namespace's.
func leaveSandbox(host string) error {
	// Once more, for a mount that came with a user namespace from above cannot
	// be moved (mount_namespaces(7)).
	if err := unix.Mount(host, host, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("binding the node's root folder: %w", err)
	}
	if err := os.Chdir(host); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing to the node's root folder: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the container's root folder: %w", err)
	}
	return os.Chdir("/")
}
