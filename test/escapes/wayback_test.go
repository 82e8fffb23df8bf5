package escapes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/test/bed"
)

// These tests are about ways back into what is hidden that need more than one program to show.

// place is a folder to work in, with a hidden one in it.
type place struct{ base, hidden string }

func (p place) secret() string { return filepath.Join(p.hidden, "secret") }

func newPlace(t *testing.T, b tools) place {
	t.Helper()
	base, err := os.MkdirTemp(b.dir, "place-")
	if err != nil {
		t.Fatal(err)
	}
	p := place{base, filepath.Join(base, "hidden")}
	if os.Geteuid() == 0 {
		uid, gid, _ := bed.User(t)
		if err := os.Chown(base, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	script := `cd "$1" && mkdir -p hidden/below second && echo canary >hidden/secret && echo canary >hidden/below/secret`
	if out, err := bed.Command(t, "sh", "-c", script, "sh", base).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return p
}

// launch is what stands before a command in an arm on the node, with paths to hide.
func (b tools) launch(arm int, hide ...string) []string {
	var argv []string
	switch arm {
	case namespace:
		argv = []string{b.fence, "--form", "namespace"}
	case bare:
		argv = append([]string{b.fence, "--form", "bare"}, accepts...)
	default:
		return nil
	}
	for _, h := range hide {
		argv = append(argv, "--hide", h)
	}
	return append(argv, "--")
}

// on is a command on the node of an arm: without user namespaces in the bare form's.
func (b tools) on(t *testing.T, arm int, argv ...string) *exec.Cmd {
	t.Helper()
	if arm == bare {
		return bed.NoUserns(t, argv[0], argv[1:]...)
	}
	return bed.Command(t, argv[0], argv[1:]...)
}

// ended is how a command ended: "OK", "125", ... and what it said.
func ended(cmd *exec.Cmd) (status, said string) {
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		status = "OK"
	case errors.As(err, &exit):
		status = fmt.Sprint(exit.ExitCode())
	default:
		status = err.Error()
	}
	return status, string(out)
}

var nodeArms = []int{none, namespace, bare}

// An open folder among the standard descriptors reaches all that is below it: no start.
func TestStandardDescriptors(t *testing.T) {
	b := build(t)
	p := newPlace(t, b)
	for _, how := range []struct {
		what string
		path string
		flag int
		want string // of the control
	}{
		{"a hidden folder", p.hidden, os.O_RDONLY, "openat OK canary\nreopen OK canary"},
		{"a hidden folder, by name only", p.hidden, 0x200000 /* O_PATH */, "openat OK canary\nreopen OK canary"},
		{"a hidden file, by name only", p.secret(), 0x200000, "openat ENOTDIR\nreopen ENOTDIR"},
	} {
		for _, arm := range nodeArms {
			f, err := os.OpenFile(how.path, how.flag, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			argv := append(b.launch(arm, p.hidden), b.attempt, "standard")
			cmd := b.on(t, arm, argv...)
			cmd.Stdin = f
			status, said := ended(cmd)
			if arm == none {
				got := byPath(t, said)[""]
				if now := "openat " + got["openat"] + "\nreopen " + got["reopen"]; now != how.want {
					t.Errorf("%s, no fence: %s", how.what, now)
				}
				continue
			}
			if status != "125" || !strings.Contains(said, "descriptor 0") {
				t.Errorf("%s as standard input, %s: %s\n%s", how.what, armNames[arm], status, said)
			}
		}
	}
	// As standard output and error, where a reader of the result may not look.
	for fd := 1; fd <= 2; fd++ {
		dir, err := os.Open(p.hidden)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		for _, arm := range []int{namespace, bare} {
			cmd := b.on(t, arm, append(b.launch(arm, p.hidden), "touch", filepath.Join(p.base, "ran"))...)
			cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
			if fd == 1 {
				cmd.Stdout = dir
			} else {
				cmd.Stderr = dir
			}
			err := cmd.Run()
			if cmd.ProcessState.ExitCode() != 125 {
				t.Errorf("a hidden folder as descriptor %d, %s: %v", fd, armNames[arm], err)
			}
			if _, err := os.Stat(filepath.Join(p.base, "ran")); err == nil {
				t.Errorf("a hidden folder as descriptor %d, %s: the command ran", fd, armNames[arm])
			}
		}
	}
}

// The status line's descriptor is the harness's own.
func TestStatusDescriptorIsClosed(t *testing.T) {
	b := build(t)
	for _, arm := range nodeArms {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		argv := b.launch(arm)
		if arm != none {
			argv = append(slices.Clone(argv[:len(argv)-1]), "--status-fd", "7", "--")
		}
		cmd := b.on(t, arm, append(argv, b.attempt, "standard")...)
		cmd.ExtraFiles = []*os.File{nil, nil, nil, nil, write}
		out, err := cmd.Output()
		write.Close()
		status, _ := io.ReadAll(read)
		read.Close()
		if err != nil {
			t.Fatalf("%s: %v\n%s", armNames[arm], err, stderr(err))
		}
		want := "EBADF"
		if arm == none {
			want = "OK"
		}
		if got := byPath(t, string(out))[""]["status"]; got != want || (len(status) > 0) != (arm != none) {
			t.Errorf("%s: the descriptor gave %s, want %s; the status line is %q", armNames[arm], got, want, status)
		}
	}
}

// An entry of a folder that is granted entry by entry, because something in it is hidden, is swapped
// for a link to what is hidden, all the time, by somebody outside.
func TestEntrySwappedForLink(t *testing.T) {
	b := build(t)
	p := newPlace(t, b)
	second := filepath.Join(p.base, "second")
	flip := bed.Command(t, b.attempt, "flip", "base="+p.base, "hidden="+filepath.Join(p.hidden, "below"))
	stop, err := flip.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	says, err := flip.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := flip.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(says)
	lines.Scan()
	secret := filepath.Join(p.hidden, "below", "secret")
	for _, arm := range nodeArms {
		for range 25 {
			status, said := ended(b.on(t, arm, append(b.launch(arm, p.hidden, second), "cat", secret)...))
			if want := map[bool]string{true: "OK", false: "1"}[arm == none]; status != want {
				t.Errorf("%s: reading the hidden file: %s %s, want status %s", armNames[arm], status, said, want)
				break
			}
		}
	}
	stop.Close()
	if !lines.Scan() || !strings.Contains(lines.Text(), "swapped") || strings.Contains(lines.Text(), `"note":"0"`) {
		t.Errorf("the swapping program: %q", lines.Text())
	}
	flip.Wait()
}

// A hidden path that is named through a link.
func TestHiddenByItsLink(t *testing.T) {
	b := build(t)
	p := newPlace(t, b)
	link := filepath.Join(p.base, "link")
	if err := os.Symlink("hidden", link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		arm        int
		dir        string
		status     string
		says, what string
	}{
		{none, p.base, "OK", "canary", "the control"},
		{namespace, p.base, "1", "No such file", "the mask lies over what the link leads to"},
		{bare, p.base, "1", "Permission denied", "Landlock closes what the link leads to"},
		{namespace, filepath.Join(p.hidden, "below"), "1", "No such file", "the working folder is left"},
	} {
		cmd := b.on(t, c.arm, append(b.launch(c.arm, link), "cat", p.secret())...)
		cmd.Dir = c.dir
		if status, said := ended(cmd); status != c.status || !strings.Contains(said, c.says) {
			t.Errorf("%s in %s: %s %s, want %s and %q: %s", armNames[c.arm], c.dir, status, said, c.status, c.says, c.what)
		}
	}
}

// In the namespace form a command can rename a folder of the user's own that holds a hidden one. The
// mask moves along; but the next fence that is told the old name finds nothing there.
func TestHiddenFolderMovedAway(t *testing.T) {
	b := build(t)
	for _, c := range []struct {
		arm                  int
		move, read, nextRead string
	}{
		{none, "OK", "OK", "OK"},
		{namespace, "1", "1", "1"},
		{bare, "1", "1", "1"},
	} {
		p := newPlace(t, b)
		moved := p.base + ".moved"
		script := `mv "$1" "$2"; status=$?; mkdir -p "$1"; exit $status`
		if status, said := ended(b.on(t, c.arm, append(b.launch(c.arm, p.hidden), "sh", "-c", script, "sh", p.base, moved)...)); status != c.move {
			t.Errorf("%s: moving: %s, want %s\n%s", armNames[c.arm], status, c.move, said)
		}
		at := filepath.Join(moved, "hidden", "secret")
		if c.arm != none {
			at = p.secret()
		}
		if status, said := ended(b.on(t, c.arm, append(b.launch(c.arm, p.hidden), "cat", at)...)); status != c.nextRead {
			t.Errorf("%s: the next command reads it: %s, want %s\n%s", armNames[c.arm], status, c.nextRead, said)
		}
	}
}

// A launcher on the node itself may lie where the command may write.
func TestLauncherOnTheNode(t *testing.T) {
	b := build(t)
	for _, c := range []struct {
		arm  int
		want string
	}{{none, "OK"}, {namespace, "1"}, {bare, "1"}} {
		own := filepath.Join(b.dir, fmt.Sprint("own", c.arm))
		if out, err := bed.Command(t, "sh", "-c", `mkdir "$1" && cp "$2" "$1/fence"`, "sh", own, b.fence).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b := b
		b.fence = filepath.Join(own, "fence")
		script := `cd "$1" && mv fence old && echo x >fence`
		if status, said := ended(b.on(t, c.arm, append(b.launch(c.arm), "sh", "-c", script, "sh", own)...)); status != c.want {
			t.Errorf("%s: replacing the launcher: %s, want %s\n%s", armNames[c.arm], status, c.want, said)
		}
	}
}

// asRoot runs a script in a mount namespace of its own; $fencer there stands before a command and
// makes it the ordinary user's, in the bare arm on a node without user namespaces.
func asRoot(t *testing.T, arm int, script string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: only root can mount")
	}
	like := bed.Command(t, "true")
	fencer := "setpriv --reuid fencer --regid team --clear-groups --"
	if arm == bare {
		bed.Require(t, "nonet")
		fencer = filepath.Join(bed.Dir(), "bin", "limit-ns") + " fencer max_user_namespaces=0 --"
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"-m", "--propagation", "private", "sh", "-ec", script, "sh"}, args...)...)
	cmd.Env = append(like.Env, "fencer="+fencer)
	cmd.Dir = like.Dir
	return cmd
}

// The same folder is seen at a second path, as a bind mount of the site's.
func TestHiddenAtSecondPath(t *testing.T) {
	b := build(t)
	for _, c := range []struct {
		arm          int
		status, says string
	}{
		{none, "OK", "canary"},
		{namespace, "1", "No such file or directory"},
		{bare, "1", "Permission denied"},
	} {
		p := newPlace(t, b)
		second := filepath.Join(p.base, "second")
		args := append([]string{p.hidden, second}, append(b.launch(c.arm, p.hidden), "cat", filepath.Join(second, "secret"))...)
		status, said := ended(asRoot(t, c.arm, `mount --bind "$1" "$2"; shift 2; $fencer "$@"`, args...))
		if status != c.status || !strings.Contains(said, c.says) {
			t.Errorf("%s: %s %s, want %s and %q", armNames[c.arm], status, said, c.status, c.says)
		}
	}
}

// In a container each such mount is hidden for itself, whatever it shows.
func TestHiddenAtSecondPathInContainer(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	p := newPlace(t, b)
	flags := []string{"--bind", p.hidden + ":/one," + p.hidden + ":/two"}
	const read = `cat /one/secret || echo none; cat /two/secret || echo none`
	for _, c := range []struct {
		prefix []string
		more   bool
		want   string
	}{
		{nil, true, "canary\ncanary\n"},
		{[]string{"/.fence/fence", "--form", "namespace", "--"}, true, "none\nnone\n"},
		{[]string{"/.fence/fence", "--form", "namespace", "--read", "/two", "--why", "a test", "--"}, true, "none\ncanary\n"},
		{append(append([]string{"/.fence/fence", "--form", "bare"}, accepts...), "--"), false, "none\nnone\n"},
		// Landlock's rules are on folders, not on paths: one opens both, and the
		// self-test sees it.
		{append(append([]string{"/.fence/fence", "--form", "bare"}, accepts...), "--read", "/two", "--"), false, "/one is hidden by the policy, and it can be opened"},
	} {
		cmd := b.container(t, !c.more, flags, bed.Image("busybox"), append(c.prefix, "sh", "-c", read)...)
		out, err := cmd.Output()
		if got := string(out); err == nil && got != c.want || err != nil && !strings.Contains(stderr(err), c.want) {
			t.Errorf("%v: %q, want %q (%v %s)", c.prefix, got, c.want, err, stderr(err))
		}
	}
}

// What a person hides is hidden below /tmp and /.fence too, where @shared leaves
// mounts alone.
func TestHiddenByNameAtSecondPath(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	p := newPlace(t, b)
	flags := []string{"--bind", p.hidden + ":/one," + p.hidden + ":/tmp/two," + p.hidden + ":/.fence/three"}
	hide := append([]string{"--read", "/one", "--read", "/tmp/two", "--hide", "/one/secret"}, accepts...)
	for _, c := range []struct {
		prefix []string
		more   bool
		want   string
	}{
		{nil, true, "canary canary canary\n"},
		{append(append([]string{"/.fence/fence", "--form", "namespace"}, hide...), "--"), true, "none none none\n"},
		{append(append([]string{"/.fence/fence", "--form", "bare"}, hide...), "--"), false, "none none none\n"},
	} {
		const read = `for d in /one /tmp/two /.fence/three; do x=$(cat $d/secret 2>/dev/null); echo "${x:-none}"; done | xargs`
		out, err := b.container(t, !c.more, flags, bed.Image("busybox"), append(c.prefix, "sh", "-c", read)...).Output()
		if string(out) != c.want {
			t.Errorf("%v: %q, want %q (%v %s)", c.prefix, out, c.want, err, stderr(err))
		}
	}
}

// A filesystem that is mounted while the command runs, in a folder that it may read.
func TestMountedLater(t *testing.T) {
	b := build(t)
	for _, c := range []struct {
		arm  int
		want string
	}{
		{none, "OK canary"},
		{namespace, "ENOENT"}, // it never gets there
		{bare, "OK canary"},   // known to remain: what is mounted in a granted folder is granted
	} {
		p := newPlace(t, b)
		second := filepath.Join(p.base, "second")
		script := `from=$1 to=$2; shift 2; mkfifo "$to.go" "$to.said"; $fencer "$@" <"$to.go" >"$to.said" & exec 8>"$to.go" 9<"$to.said"
			while read -r line <&9; do echo "$line"; case $line in *ask*) mount --bind "$from" "$to"; echo >&8;; esac; done; wait`
		args := append([]string{p.hidden, second}, append(b.launch(c.arm), b.attempt, "waits", "hidden="+second)...)
		status, said := ended(asRoot(t, c.arm, script, args...))
		if status != "OK" {
			t.Errorf("%s: %s %s", armNames[c.arm], status, said)
			continue
		}
		if got := byPath(t, said)[""]; got["before"] != "ENOENT" || got["after"] != c.want {
			t.Errorf("%s: %v, want %s afterwards", armNames[c.arm], got, c.want)
		}
	}
}
