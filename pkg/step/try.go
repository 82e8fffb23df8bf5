package step

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The names under which the binary tries a root folder.
const (
	argTry = "step-try" // as a RUN step's command
	argRan = "step-ran" // as the interpreter of a script
)

// tryDir is where the command of Trial works.
const tryDir = "/try"

// Trial is a RUN step that does to its root folder, whose layer is at lower,
// what commands do: it ends with status 0, or says what did not work.
func Trial(lower, fence string) (*Run, error) {
	for _, name := range []string{"a", "b"} {
		dir := filepath.Join(lower, tryDir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
			return nil, err
		}
	}
	return &Run{Argv: []string{inFence + "/sifbuild", argTry}, Cwd: "/", Network: "default", Fence: fence}, nil
}

// tryMain is the command of Trial.
func tryMain() int {
	if err := os.Chdir(tryDir); err != nil {
		return complain(err)
	}
	for _, try := range []struct {
		what string
		do   func() error
	}{
		{"replace a folder of a layer below", func() error {
			if err := errors.Join(os.RemoveAll("a"), os.Mkdir("a", 0o755)); err != nil {
				return err
			}
			if list, err := os.ReadDir("a"); err != nil || len(list) > 0 {
				return fmt.Errorf("what was in it is there again (%v)", err)
			}
			return nil
		}},
		{"remove a file of a layer below", func() error {
			if err := os.Remove("b/file"); err != nil {
				return err
			}
			if _, err := os.Lstat("b/file"); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("it is still there (%v)", err)
			}
			return nil
		}},
		{"give a file an owner", func() error {
			if err := errors.Join(os.WriteFile("own", nil, 0o644), os.Chown("own", 1, 2)); err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Stat("own", &st); err != nil || st.Uid != 1 || st.Gid != 2 {
				return fmt.Errorf("it belongs to %d:%d then (%v)", st.Uid, st.Gid, err)
			}
			return nil
		}},
		{"make a link and a FIFO", func() error {
			return errors.Join(os.Symlink("own", "link"), unix.Mkfifo("fifo", 0o644))
		}},
		{"give a file two names", func() error {
			var one, two unix.Stat_t
			if err := errors.Join(os.Link("own", "same"), unix.Stat("own", &one), unix.Stat("same", &two)); err != nil {
				return err
			}
			if one.Ino != two.Ino || one.Nlink != 2 || two.Nlink != 2 {
				return errors.New("they look like two files then")
			}
			return nil
		}},
		{"start a program", func() error {
			if err := os.WriteFile("program", []byte("#!"+inFence+"/sifbuild "+argRan+"\n"), 0o755); err != nil {
				return err
			}
			return exec.Command(tryDir + "/program").Run()
		}},
	} {
		if err := try.do(); err != nil {
			var errno syscall.Errno
			if errors.As(err, &errno) {
				err = errno // not the paths of this trial
			}
			fmt.Printf("cannot %s: %v\n", try.what, err)
			return 1
		}
	}
	return 0
}
