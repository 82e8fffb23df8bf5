package bed

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

var built sync.Map // name -> func() (string, error), each called once

// Bin is the path of one of the module's programs (fence, probe, ...), which every user can run.
// It is built once per test process, just as `make build` does, unless $BED_BIN names a folder
// that has it.
func Bin(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv("BED_BIN"); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("BED_BIN is set: %v", err)
		}
		return path
	}
	once, _ := built.LoadOrStore(name, sync.OnceValues(func() (string, error) { return build(name) }))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build makes the program in a folder that all test processes share. Packages are tested at the
// same time, so it is built under a lock and appears whole, and only when it changed.
func build(name string) (string, error) {
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(Dir(), "build")
	if err := os.MkdirAll(dir, 0o755); err != nil || syscall.Access(dir, 2) != nil {
		// Not root, or no test bed at all.
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("fence-bed-build-%d", os.Getuid()))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}

	if dir, err = of(module, dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	fresh := path + ".build" // kept, so that go sees when there is nothing to do
	args := []string{"build", "-trimpath", "-buildvcs=false"}
	cgo := "CGO_ENABLED=0"
	if name == "fence" {
		cgo = "CGO_ENABLED=1" // libseccomp
		args = append(args, "-tags", "osusergo,netgo", "-ldflags", `-s -w -linkmode external -extldflags "-static"`)
	} else {
		args = append(args, "-ldflags", "-s -w")
	}
	cmd := exec.Command("go", append(args, "-o", fresh, "./cmd/"+name)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building ./cmd/%s: %v\n%s", name, err, out)
	}
	return path, publish(fresh, path)
}

// of is the folder in dir for the programs of one checkout: another's are of other sources.
func of(module, dir string) (string, error) {
	dir = filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte(module)))[:12])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // whatever the umask
}

// publish puts a copy of fresh at path, whole, unless it is there already: the program may be
// running, and a file that is being run cannot be written.
func publish(fresh, path string) error {
	want, err := os.ReadFile(fresh)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.WriteFile(path+".new", want, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(path+".new", 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// moduleDir is the folder of go.mod above the test's working directory.
func moduleDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
	}
}
