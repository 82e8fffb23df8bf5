package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A victim is the process that a row is aimed at. It answers as long as it is alive.
type victim struct {
	ask interface {
		Write([]byte) (int, error)
		Close() error
	}
	answers *bufio.Reader
}

// startVictim starts it and takes from its first line what the attempts need to know.
func (d *driver) startVictim(ctx context.Context) error {
	cmd := d.command(ctx, d.row.Has("sibling"), "victim")
	ask, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.victim = &victim{ask, bufio.NewReader(answers)}
	d.cleanup = append(d.cleanup, func() {
		ask.Close() // it then removes what it made
		cmd.Wait()
	})
	line, err := d.victim.answers.ReadBytes('\n')
	if err != nil {
		return err
	}
	known := map[string]int64{}
	if err := json.Unmarshal(line, &known); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	for k, v := range known {
		d.args[k] = strconv.FormatInt(v, 10)
	}
	return nil
}

// startOther starts a process of the same user in a user namespace of its own. Where the node
// allows none, the victim stands in for it.
func (d *driver) startOther(ctx context.Context) error {
	d.args["nspid"] = d.args["pid"]
	cmd := d.command(ctx, false, "others-namespace")
	ask, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cleanup = append(d.cleanup, func() {
		ask.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(answers).ReadString('\n')
	if err == nil && strings.Contains(line, `"OK"`) {
		d.args["nspid"] = strconv.Itoa(cmd.Process.Pid)
	}
	return err
}

// state is all that an attempt could have changed: of the victim, of the hidden and the plain
// files, and of the terminals.
func (d *driver) state() (map[string]string, error) {
	if _, err := d.victim.ask.Write([]byte("?")); err != nil {
		return nil, err
	}
	line, err := d.victim.answers.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	raw := map[string]any{}
	if err := json.Unmarshal(line, &raw); err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	s := map[string]string{}
	for k, v := range raw {
		s[k] = fmt.Sprint(v)
	}
	s["hidden-files"], s["plain-files"] = tree(d.path("hidden")), tree(d.path("plain"))
	s["typed"], s["shown"] = "", ""
	if d.terminal != nil {
		s["typed"], s["shown"] = d.terminal.typed(), d.terminal.shown()
	}
	return s, nil
}

// tree is everything about a folder's files but their times of access and of change. The log and
// the file that the driver itself makes are not in it.
func tree(root string) string {
	var out []string
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := filepath.Base(p); name == "log" || name == "new-name" {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		size, when := st.Size, time.Unix(st.Mtim.Unix())
		if e.IsDir() {
			size, when = 0, time.Time{}
		}
		var text []byte
		if e.Type().IsRegular() {
			if text, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		names := make([]byte, 256)
		n, _ := unix.Llistxattr(p, names)
		rel, _ := filepath.Rel(root, p)
		out = append(out, fmt.Sprintf("%s mode %o links %d size %d at %d text %x xattr %q", rel, st.Mode, st.Nlink, size, when.UnixNano(),
			sha256.Sum256(text), names[:max(n, 0)]))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return "gone"
	}
	if err != nil {
		out = append(out, err.Error())
	}
	return strings.Join(out, "\n")
}

// A terminal is one of the user's own.
type terminal struct {
	master, slave *os.File
	in, out       string
}

func openTerminal() (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	// Raw: what is typed can be read at once.
	raw, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw.Lflag, raw.Iflag, raw.Oflag = 0, 0, 0
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 0 // a read of nothing returns
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, raw); err != nil {
		return nil, err
	}
	return &terminal{master: master, slave: slave}, nil
}

// typed is what somebody has typed into it so far, shown what somebody has written on it.
func (t *terminal) typed() string {
	buf := make([]byte, 256)
	n, _ := unix.Read(int(t.slave.Fd()), buf)
	t.in += string(buf[:max(n, 0)])
	return t.in
}

func (t *terminal) shown() string {
	buf := make([]byte, 256)
	unix.SetNonblock(int(t.master.Fd()), true)
	n, _ := unix.Read(int(t.master.Fd()), buf)
	t.out += string(buf[:max(n, 0)])
	return t.out
}

func (t *terminal) close() {
	t.master.Close()
	t.slave.Close()
}
