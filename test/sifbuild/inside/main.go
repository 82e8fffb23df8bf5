// Command inside is what the tests' RUN lines do that busybox cannot. The same
// program on the node shows that what is refused inside works outside.
//
//	inside get URL         prints what a server answers
//	inside cat FILE        prints a file
//	inside chmod-out       makes whatever standard output is setuid
//	inside leave URL       leaves a process behind that nothing holds on to
//	inside stay URL        tells a server that it is there, and stays whatever comes
//	inside try ATTEMPT...  says of each attempt, one a line, whether it worked
//
// Named apptainer, it stands in for that where a test has Apptainer run
// elsewhere.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == "apptainer" {
		code, err := outside()
		if err != nil {
			fmt.Fprintln(os.Stderr, "FATAL:", err)
		}
		os.Exit(code)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

// outside has the test start Apptainer with what this process was started with.
func outside() (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 255, err
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(filepath.Dir(self), "socket"), Net: "unixpacket"})
	if err != nil {
		return 255, err
	}
	msg, err := json.Marshal(struct{ Args, Env []string }{os.Args, os.Environ()})
	if err != nil {
		return 255, err
	}
	if _, _, err := c.WriteMsgUnix(msg, syscall.UnixRights(0, 1, 2, 3), nil); err != nil {
		return 255, err
	}
	answer := make([]byte, 1)
	if _, err := c.Read(answer); err != nil {
		return 255, err
	}
	return int(answer[0]), nil
}

func run(what string, args []string) error {
	switch what {
	case "get":
		r, err := http.Get(args[0])
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.Copy(os.Stdout, r.Body)
		return err
	case "cat":
		data, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(data)
		return err
	case "chmod-out":
		return syscall.Fchmod(1, 0o6755)
	case "leave":
		return again("leave2", args[0]) // whose parent is gone when it starts the one that stays
	case "leave2":
		return again("stay", args[0])
	case "stay":
		signal.Ignore(syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
		if r, err := http.Get(args[0]); err == nil {
			r.Body.Close()
		}
		for {
			syscall.Pause()
		}
	case "try":
		for _, a := range args {
			result := "works"
			if err := try(a); err != nil {
				result = err.Error()
			}
			fmt.Printf("%s\t%s\n", a, result)
		}
		return nil
	}
	return fmt.Errorf("%q is not known", what)
}

// again starts this program in a session of its own and does not wait.
func again(what, url string) error {
	cmd := exec.Command("/proc/self/exe", what, url)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// try does what KIND:ARGUMENT says.
func try(attempt string) error {
	kind, arg, _ := strings.Cut(attempt, ":")
	pid, _ := strconv.Atoi(arg)
	switch kind {
	case "read": // the beginning of a file, or of a folder's names
		f, err := os.Open(arg)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Read(make([]byte, 1)); err == nil {
			return nil
		}
		_, err = f.Readdirnames(1)
		return err
	case "write": // a new file in a folder
		f, err := os.CreateTemp(arg, "")
		if err != nil {
			return err
		}
		f.Close()
		return os.Remove(f.Name())
	case "signal":
		return syscall.Kill(pid, 0)
	case "environ":
		_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return err
	case "others": // is anybody in /proc whose command this is?
		files, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return err
		}
		for _, name := range files {
			if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), arg) && !strings.Contains(string(data), "others:") {
				return nil
			}
		}
		return fmt.Errorf("none of %d processes", len(files))
	case "unix", "abstract":
		if kind == "abstract" {
			arg = "@" + arg
		}
		c, err := net.Dial("unix", arg)
		if err != nil {
			return err
		}
		return c.Close()
	case "descriptor": // is a folder open from which the node's files can be reached?
		for fd := range 256 {
			f, err := syscall.Openat(fd, arg, syscall.O_RDONLY, 0)
			if err == nil {
				return syscall.Close(f)
			}
		}
		return fmt.Errorf("no descriptor leads there")
	}
	return fmt.Errorf("BUG: %q is not known", attempt)
}
