package readfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRegular(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int64{"small": 10, "full": 1024, "large": 1025, "sparse": 1 << 40} {
		if err := os.WriteFile(at(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(at(name), size); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(at("fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("small", at("link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"small": "", "full": "", "link": "", "large": "larger than 1 KiB", "sparse": "larger than 1 KiB",
		"fifo": "not a regular file", ".": "not a regular file", "/dev/zero": "not a regular file", "none": "no such file",
	} {
		if !filepath.IsAbs(name) {
			name = at(name)
		}
		data, err := Regular(name, 1024)
		switch {
		case want == "" && (err != nil || len(data) == 0):
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || data != nil):
			t.Errorf("%s: %d bytes, %v; want %s", name, len(data), err, want)
		}
	}
}
