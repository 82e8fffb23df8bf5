package sif

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PackOptions say how a folder becomes a squashfs.
type PackOptions struct {
	Program    string     // "" is mksquashfs, found on PATH
	Processors int        // 0: all; mksquashfs counts the machine's, not the job's
	MemMiB     int        // 0: a quarter of the machine's memory
	Empty      []string   // folders that are packed without what is in them: dev, proc, sys
	Pseudo     []string   // mksquashfs pseudo file definitions, such as "dev/x c 666 0 0 1 3"
	Time       *time.Time // of everything in the squashfs; nil: the files' own
}

// What a failed Pack or Write can be told by, with errors.Is. A Pack that starved
// (was killed by the kernel, got no memory or no thread) may work with fewer
// processors and less memory.
var (
	ErrDiskFull   = errors.New("the disk is full")
	ErrStarved    = errors.New("mksquashfs did not get what it needs of the node")
	ErrNoPacker   = errors.New("mksquashfs is not installed")
	errNoCompress = errors.New("this mksquashfs cannot compress so")
)

// Pack makes the squashfs out of the folder root, with every file owned by
// 0:0 and no extended attribute. It runs mksquashfs in the caller's
// namespaces, which has to be able to read everything: a file that cannot be
// read is an error. A failed Pack leaves no file.
func Pack(ctx context.Context, root, out string, o PackOptions) error {
	err := pack(ctx, root, out, o, "zstd")
	if errors.Is(err, errNoCompress) {
		err = pack(ctx, root, out, o, "gzip")
	}
	if err != nil {
		os.Remove(out)
		return fmt.Errorf("packing %s: %w", root, err)
	}
	return nil
}

func pack(ctx context.Context, root, out string, o PackOptions, compression string) error {
	program := o.Program
	if program == "" {
		program = "mksquashfs"
	}
	cmd := exec.CommandContext(ctx, program, packArgs(root, out, o, compression)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} // a SOURCE_DATE_EPOCH of the caller would clash with Time
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	runtime.LockOSThread() // the death signal is sent when the thread ends that started the command
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return packError(err, text.String())
}

// packArgs is the command line after the program's name, for mksquashfs 4.5.1
// as of Debian 12. Without -exit-on-error it would leave out what it cannot
// read, and say so on stderr only.
func packArgs(root, out string, o PackOptions, compression string) []string {
	args := []string{root, out, "-noappend", "-all-root", "-no-xattrs", "-no-progress", "-exit-on-error", "-comp", compression}
	switch compression {
	case "zstd":
		args = append(args, "-Xcompression-level", "3")
	case "gzip":
		args = append(args, "-Xcompression-level", "1")
	}
	if o.Processors > 0 {
		args = append(args, "-processors", strconv.Itoa(o.Processors))
	}
	if o.MemMiB > 0 {
		args = append(args, "-mem", strconv.Itoa(o.MemMiB)+"M")
	}
	if o.Time != nil {
		sec := strconv.FormatInt(o.Time.Unix(), 10)
		args = append(args, "-mkfs-time", sec, "-all-time", sec)
	}
	for _, p := range o.Pseudo {
		args = append(args, "-p", p)
	}
	if len(o.Empty) > 0 { // -e takes all that follows
		args = append(args, "-wildcards", "-e")
		for _, dir := range o.Empty {
			dir = globEscape.Replace(strings.Trim(dir, "/"))
			args = append(args, dir+"/*", dir+"/.*")
		}
	}
	return args
}

var globEscape = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "(", `\(`)

// packError is what mksquashfs's end means; text is all that it printed.
func packError(err error, text string) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: install squashfs-tools (%v)", ErrNoPacker, err)
	case strings.Contains(text, "No space left on device"), strings.Contains(text, "Disk quota exceeded"),
		strings.Contains(text, "out of space on output filesystem"):
		return fmt.Errorf("%w: %s", ErrDiskFull, why(text))
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return fmt.Errorf("%w: it was killed, probably for want of memory", ErrStarved)
	case strings.Contains(text, "Failed to create thread"), strings.Contains(text, "Out of memory"):
		return fmt.Errorf("%w: %s", ErrStarved, why(text))
	case strings.Contains(text, "Compressor \"") && strings.Contains(text, "is not supported"):
		return fmt.Errorf("%w: %s", errNoCompress, why(text))
	}
	if line := why(text); line != "" {
		return fmt.Errorf("mksquashfs, %w: %s", err, line)
	}
	return fmt.Errorf("mksquashfs: %w", err)
}

// why is the line of mksquashfs's output that says what went wrong.
func why(text string) string {
	var last string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, mark := range []string{"FATAL ERROR", "ERROR", "failed", "Failed", "not supported", "Cannot", "Could not"} {
			if strings.Contains(line, mark) {
				return strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(line, "FATAL "), "ERROR:"))
			}
		}
		if line != "" {
			last = line
		}
	}
	return last
}
