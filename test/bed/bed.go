// Package bed is the tests' way to the test bed that test/bed/up makes: an ordinary user, a
// neighbour, a real rootless Apptainer, images and a site's faults (README.md says what each is).
//
// A test names what it needs and then runs commands the way a person on the cluster would:
//
//	bed.Require(t, "images", "site")
//	out, err := bed.Apptainer(t, "exec", bed.Image("debian"), "id").Output()
//
// A part that is missing skips the test and says how to bring it up; with TEST_REQUIRED=1 it
// fails it. When the test process is root, commands run as the bed's ordinary user; otherwise as
// whoever runs the tests.
package bed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The site's shared project: bound into every container by the site's apptainer.conf.
const (
	Project        = "/proj/team"
	ProjectReadme  = Project + "/README"                   // world-readable, the neighbour's
	ProjectOwn     = Project + "/fencer/results.csv"       // group-readable, the ordinary user's
	ProjectToken   = Project + "/fencer/token"             // only the ordinary user reads it
	ProjectNotes   = Project + "/neighbour/notes.txt"      // group-readable, the neighbour's
	ProjectPrivate = Project + "/neighbour/token"          // only the neighbour reads it
	ProjectHidden  = Project + "/neighbour/private/inside" // in a folder only the neighbour may enter
	ProjectScratch = Project + "/scratch"                  // everybody of the project writes here
	Checkout       = Project + "/checkout"                 // the ordinary user's, for a checkout on shared storage
)

// Dir is the folder that test/bed/up fills: $BED_DIR, or /var/cache/fence-bed.
func Dir() string {
	if dir := os.Getenv("BED_DIR"); dir != "" {
		return dir
	}
	return "/var/cache/fence-bed"
}

// Image is the path of an image: debian, busybox, musl, static, dockerenv; with their own parts
// bullseye and workloads.
func Image(name string) string { return filepath.Join(Dir(), "images", name+".sif") }

// Root is the root file system that Image was packed from, as a folder. Its files are root's.
func Root(name string) string { return filepath.Join(Dir(), "roots", name) }

// StaleDir is one side, a or b, of the shared storage whose other side sees changes 30 seconds
// late (the part stale).
func StaleDir(side string) string { return filepath.Join(Dir(), "stale", side) }

// Require skips the test unless all parts of the test bed are there, or fails it when
// TEST_REQUIRED=1 says that this machine is meant to have them.
func Require(t testing.TB, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err := missing(part); err != nil {
			Missing(t, "the part %q of the test bed (%v); as root: test/bed/up %s", part, err, part)
		}
	}
}

// Missing ends a test for want of something: a skip, or a failure when TEST_REQUIRED=1.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if os.Getenv("TEST_REQUIRED") == "1" {
		t.Fatalf("TEST_REQUIRED=1, and this is missing: %s", what)
		return
	}
	t.Skipf("SKIPPED, this is missing: %s", what)
}

// missing says why a part is not there. The mark that up leaves is not enough: the folder may have
// been carried to another machine, which has none of what lies outside it.
func missing(part string) error {
	if _, err := os.Stat(filepath.Join(Dir(), "stamps", "part-"+part)); err != nil {
		return err
	}
	switch part {
	case "users", "nonet":
		_, err := account("fencer")
		return err
	case "apptainer", "images", "bullseye", "workloads":
		_, err := exec.LookPath(filepath.Join(Dir(), "bin", "apptainer"))
		if err != nil {
			return err
		}
		return syscall.Access("/dev/fuse", 6)
	case "harbor":
		_, err := exec.LookPath(filepath.Join(Dir(), "harbor", "bin", "python"))
		return err
	case "site":
		_, err := os.Stat(Project)
		return err
	case "slurm":
		return exec.Command("scontrol", "ping").Run()
	case "stale":
		_, err := os.Stat(filepath.Join(StaleDir("a"), "here"))
		return err
	}
	return nil
}

// An Account is somebody on the node.
type Account struct {
	Name     string
	UID, GID int
	Home     string
}

func account(name string) (Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return Account{}, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return Account{}, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return Account{}, err
	}
	return Account{Name: u.Username, UID: uid, GID: gid, Home: u.HomeDir}, nil
}

// Person is who Command runs as: the bed's ordinary user if the test process is root, else the
// caller.
func Person(t testing.TB) Account {
	t.Helper()
	if os.Geteuid() == 0 {
		return named(t, "fencer")
	}
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	a, err := account(u.Username)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// User is Person's ids and home folder.
func User(t testing.TB) (uid, gid int, home string) {
	t.Helper()
	a := Person(t)
	return a.UID, a.GID, a.Home
}

func named(t testing.TB, name string) Account {
	t.Helper()
	a, err := account(name)
	if err != nil {
		Missing(t, "the user %s; as root: test/bed/up users", name)
	}
	return a
}

// Command is name with args, run as Person with nothing but HOME, USER, LOGNAME, LANG and a PATH
// that finds the bed's programs first. It starts in the person's home, and is ended when the test
// is over and its cleanups begin (a cleanup that runs a command takes CommandContext).
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return CommandContext(t, t.Context(), name, args...)
}

// CommandContext is Command with a context of its own.
func CommandContext(t testing.TB, ctx context.Context, name string, args ...string) *exec.Cmd {
	t.Helper()
	return as(ctx, Person(t), name, args)
}

// Neighbour is Command run as the other user of the node. Only root can do so: other callers skip.
func Neighbour(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root: only root can run a command as another user")
	}
	return as(t.Context(), named(t, "neighbour"), name, args)
}

// Apptainer is Command for the bed's apptainer.
func Apptainer(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	return Command(t, filepath.Join(Dir(), "bin", "apptainer"), args...)
}

// NoNetns is Command on a node that allows no network namespaces (user.max_net_namespaces=0).
// Only root can make one: other callers skip.
func NoNetns(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return limited(t, []string{"max_net_namespaces=0"}, name, args)
}

// NoUserns is Command on a node that allows no user namespaces (user.max_user_namespaces=0).
func NoUserns(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return limited(t, []string{"max_user_namespaces=0"}, name, args)
}

// Limited is Command on a node with the given /proc/sys/user settings, such as
// "max_user_namespaces=1". They count what is made below the command.
func Limited(t testing.TB, limits []string, name string, args ...string) *exec.Cmd {
	t.Helper()
	return limited(t, limits, name, args)
}

func limited(t testing.TB, limits []string, name string, args []string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root: only root can set a node's limits")
	}
	Require(t, "nonet")
	fencer := named(t, "fencer")
	argv := append([]string{fencer.Name}, limits...)
	argv = append(append(argv, "--", name), args...)
	cmd := as(t.Context(), fencer, filepath.Join(Dir(), "bin", "limit-ns"), argv)
	cmd.SysProcAttr = nil // limit-ns becomes the user itself
	return cmd
}

func as(ctx context.Context, who Account, name string, args []string) *exec.Cmd {
	path := []string{filepath.Join(Dir(), "bin"), "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"}
	cmd := exec.CommandContext(ctx, name, args...)
	if filepath.Base(name) == name {
		// Found as the command's own shell would, not on the PATH of whoever runs the tests.
		cmd.Path, cmd.Err = find(path, name)
	}
	cmd.Dir = who.Home
	cmd.Env = []string{"HOME=" + who.Home, "USER=" + who.Name, "LOGNAME=" + who.Name, "LANG=C.UTF-8",
		"PATH=" + strings.Join(path, ":")}
	// Apptainer takes its FUSE helpers with it when it is asked to end, not when it is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second // then SIGKILL; nor may a child that keeps a pipe open hang the test
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(who.UID), Gid: uint32(who.GID), Groups: []uint32{}},
		}
	}
	return cmd
}

func find(path []string, name string) (string, error) {
	for _, dir := range path {
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return name, &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// TempDir is t.TempDir for the person: the folder is theirs, and everybody may look into it.
// It is on the node's own disk ($TMPDIR, else /tmp).
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fence-bed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, dir) })
	return own(t, dir)
}

// SharedDir is TempDir on the site's shared project, in the checkout's folder.
func SharedDir(t testing.TB) string {
	t.Helper()
	return siteDir(t, Checkout)
}

// HomeDir is TempDir in the person's home, which is on shared storage too.
func HomeDir(t testing.TB) string {
	t.Helper()
	return siteDir(t, Person(t).Home)
}

func siteDir(t testing.TB, parent string) string {
	t.Helper()
	Require(t, "site")
	dir, err := os.MkdirTemp(parent, "test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, dir) })
	return own(t, dir)
}

func own(t testing.TB, dir string) string {
	t.Helper()
	who := Person(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, who.UID, who.GID); err != nil {
		t.Fatal(err)
	}
	return dir
}

// removeAll also removes what an overlay leaves: folders of mode 0.
func removeAll(t testing.TB, dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("a test's folder could not be removed: %v", err)
	}
}
