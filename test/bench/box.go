package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fence/pkg/session"
	"fence/test/bed"
)

// box is a session in a container, and the peer beside it: an instance of the
// same image, as Apptainer keeps containers up.
type box struct {
	exec   []string // of the peer: a container for each command
	inside []string // of the peer: commands in the instance
	fence  string
	socket string
	serve  *exec.Cmd
	stop   func()
}

// startBox is nil where there is no test bed.
func startBox(fence, work string) *box {
	image, apptainer := bed.Image("debian"), filepath.Join(bed.Dir(), "bin", "apptainer")
	for _, path := range []string{image, apptainer} {
		if _, err := os.Stat(path); err != nil {
			fmt.Println("\nNo Apptainer (test/bed/up): nothing of sessions")
			return nil
		}
	}
	out, err := command([]string{"sh", "-c", `eval "$(` + fence + ` env)"; env | grep ^APPTAINER_`}).Output()
	must(wrap([]string{"fence env"}, err))
	environment = append(environment, strings.Split(strings.TrimSpace(string(out)), "\n")...)

	name := fmt.Sprintf("bench%d", os.Getpid())
	process(apptainer, "-q", "instance", "start", "--bind", work, image, name)()
	own := filepath.Join(work, "own")
	must(os.Mkdir(own, 0o777))
	must(os.Chmod(own, 0o777)) // whatever the umask
	b := &box{fence: fence, socket: filepath.Join(own, "s"),
		exec:   []string{apptainer, "-q", "exec", "--bind", work, image},
		inside: []string{apptainer, "-q", "exec", "instance://" + name}}
	b.serve = command(append(append([]string{fence, "serve", "--socket", b.socket, "--"}, b.exec...), "/.fence/fence", "serve", "--stdio", "--domain", "agent=strict"))
	b.serve.Stderr = os.Stderr
	must(b.serve.Start())
	b.stop = func() {
		must(b.serve.Process.Signal(syscall.SIGTERM))
		_ = b.serve.Wait() // it ends by that
		process(apptainer, "-q", "instance", "stop", name)()
	}
	return b
}

// commands compares a command in the session with one in a container of its
// own and with one in the instance. The first contestant twice says how much
// is noise.
func (b *box) commands(n int) {
	client := session.Dial(b.socket, 20*time.Second)
	run := func() {
		exit, err := client.Run(context.Background(), session.Command{Domain: "agent", Argv: []string{"/bin/true"}}, session.Streams{})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("a command in the session: %+v", exit)
		}
		must(err)
	}
	fmt.Printf("\nA command that does nothing, in a container (%d each, in turn; milliseconds)\n", n)
	starts(n, []contestant{
		{"session, Go client", run},
		{"the same again", run},
		{"session, fence run", process(b.fence, "run", "--socket", b.socket, "--", "/bin/true")},
		{"apptainer exec instance://", process(append(b.inside, "/bin/true")...)},
		{"apptainer exec", process(append(b.exec, "/bin/true")...)},
		{"apptainer exec, fence", process(append(b.exec, "/.fence/fence", "--", "/bin/true")...)},
	})
}
