package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func write(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func TestWrite(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	for _, s := range []string{"first, and long", "second"} {
		if err := Write(path, write(s)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != s {
			t.Errorf("%q, %v", got, err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	only(t, dir, "report.json")
}

func TestWrite_ErrorLeavesWhatWasThere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	if err := Write(path, write("old")); err != nil {
		t.Fatal(err)
	}
	bad := errors.New("no more")
	err := Write(path, func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return bad })
	if !errors.Is(err, bad) {
		t.Error(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("%q", got)
	}
	only(t, dir, "report.json")
}

func TestWrite_NamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "report.json")
	if err := Write(path, write("x")); err == nil || !strings.Contains(err.Error(), path+": no such file") {
		t.Error(err)
	}
	dir := t.TempDir()
	if err := Write(dir, write("x")); err == nil {
		t.Error("a directory was written over")
	}
}

func TestWrite_FIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() { b, _ := os.ReadFile(path); got <- string(b) }()
	if err := Write(path, write("x")); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != "x" {
		t.Errorf("%q", s)
	}
}

func only(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("%v, %v", entries, err)
	}
}
