// Package apptainer starts the node's Apptainer so that nothing of it outlives
// whoever started it, and so that it takes nothing from the caller's environment,
// settings or home folder.
package apptainer

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Env is the environment that Apptainer is started with: what the caller has
// set for it (APPTAINER_*, SINGULARITY_*) does not count, and what it writes
// goes to the folder own.
func Env(own string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + own, "APPTAINER_CONFIGDIR=" + own, "APPTAINER_CACHEDIR=" + own, "APPTAINER_TMPDIR=" + own}
}

// oneUser is the flag by which Apptainer has no other users than the caller.
const oneUser = "--ignore-subuid"

// Exec are the arguments that start a task's image (design.md, section 6): one
// user, 0 inside, who is the caller; a clean environment; its own processes and
// IPC; nothing of the site; a writable overlay and a private /tmp and /var/tmp
// in folders that are there. Behind them belong --bind, --net, the image and
// the command.
func Exec(overlay, workdir string) []string {
	return []string{"--silent", "exec",
		"--fakeroot", oneUser, "--ignore-fakeroot-command",
		"--containall", "--cleanenv", "--pid", "--ipc", "--no-eval",
		"--no-umask",                               // the caller's own does not count: 022
		"--no-mount", "bind-paths,home,cwd,hostfs", // without home, no tmpfs hides the image's /root either
		"--pwd", "/", "--overlay", overlay, "--workdir", workdir}
}

var (
	color = regexp.MustCompile(`\x1b\[[0-9;]*m`) // the starter uses it on no terminal, too
	fatal = regexp.MustCompile(`(?:FATAL|ERROR) *: *(.+)|^Error for command .*: (unknown flag: .+)`)
)

// LastWords is the line of what a container has said that says most:
// Apptainer's fatal one or fence's own, else the last.
func LastWords(said string, end error) string {
	last := ""
	for line := range strings.Lines(color.ReplaceAllString(said, "")) {
		line = strings.TrimSpace(line)
		if m := fatal.FindStringSubmatch(line); m != nil {
			return m[1] + m[2]
		}
		if text, ok := strings.CutPrefix(line, "fence: "); ok {
			return text
		}
		if line != "" {
			last = line
		}
	}
	if last == "" {
		return fmt.Sprintf("it says nothing (%v)", end)
	}
	return last
}

// Tail keeps the end of what is written to it.
type Tail struct {
	Most int // bytes
	buf  bytes.Buffer
}

func (t *Tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if over := t.buf.Len() - 2*t.Most; over > 0 {
		t.buf.Next(t.buf.Len() - t.Most)
	}
	return len(p), nil
}

func (t *Tail) String() string {
	b := t.buf.Bytes()
	return string(b[max(0, len(b)-t.Most):])
}
