package session

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process of the test below: its first thread ends, another lives on.
func init() {
	if os.Getenv("TEST_FIRST_THREAD_ENDS") == "" {
		return
	}
	go func() {
		for p, _ := processOf(os.Getpid()); p.state != "Z"; p, _ = processOf(os.Getpid()) {
		}
		fmt.Println(os.Getpid())
		time.Sleep(time.Hour)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // of the thread, which init has to itself
}

// What looks like a zombie and is none ends with its session, also in a
// process group of its own.
func TestKillSession_WithoutFirstThread(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("bash", "-c", `set -m; TEST_FIRST_THREAD_ENDS=1 "$0" & wait`, os.Args[0])
	cmd.Stdout, cmd.SysProcAttr = w, &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	from, pid := bufio.NewReader(r), 0
	if _, err := fmt.Fscan(from, &pid); err != nil {
		t.Fatal(err)
	}
	killSession(cmd.Process.Pid)
	r.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, from); err != nil { // its end of the pipe is open
		t.Errorf("process %d lives on", pid)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}
