package sif

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/pkg/internal/sandboxtest"
)

func TestPackArgs(t *testing.T) {
	base := "ROOT OUT -noappend -all-root -no-xattrs -no-progress -exit-on-error "
	stamp := time.Unix(1700000000, 0)
	for _, c := range []struct {
		o           PackOptions
		compression string
		want        string
	}{
		{PackOptions{}, "zstd", base + "-comp zstd -Xcompression-level 3"},
		{PackOptions{}, "gzip", base + "-comp gzip -Xcompression-level 1"},
		{PackOptions{Processors: 2, MemMiB: 512}, "zstd", base + "-comp zstd -Xcompression-level 3 -processors 2 -mem 512M"},
		{PackOptions{Time: &stamp}, "zstd", base + "-comp zstd -Xcompression-level 3 -mkfs-time 1700000000 -all-time 1700000000"},
		{PackOptions{Pseudo: []string{"dev/x c 666 0 0 1 3"}, Empty: []string{"/proc", "a[b"}}, "zstd",
			base + `-comp zstd -Xcompression-level 3 -p dev/x c 666 0 0 1 3 -wildcards -e proc/* proc/.* a\[b/* a\[b/.*`},
	} {
		if got := strings.Join(packArgs("ROOT", "OUT", c.o, c.compression), " "); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func needPacker(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		if os.Getenv("TEST_REQUIRED") == "1" {
			t.Fatal("TEST_REQUIRED=1, but mksquashfs is not installed")
		}
		t.Skip("SKIPPED, this is missing: mksquashfs (Debian: squashfs-tools)")
	}
}

func plant(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for p, text := range files {
		p = filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPack(t *testing.T) {
	needPacker(t)
	root, dir := t.TempDir(), t.TempDir()
	plant(t, root, map[string]string{"a": "x", "proc/1/x": "", "proc/.hidden": "", "deep/proc/x": "", "dev/null": ""})
	out := filepath.Join(dir, "out")
	stamp := time.Unix(1700000000, 0)
	o := PackOptions{Processors: 1, MemMiB: 64, Empty: []string{"proc", "dev"}, Pseudo: []string{"dev/tape c 640 0 5 9 1"}, Time: &stamp}
	t.Setenv("SOURCE_DATE_EPOCH", "5") // a caller's would clash
	if err := Pack(t.Context(), root, out, o); err != nil {
		t.Fatal(err)
	}
	list, err := exec.Command("unsquashfs", "-lln", out).Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); strings.Contains(line, "squashfs-root") {
			got = append(got, f[0]+" "+f[1]+" "+strings.TrimPrefix(f[len(f)-1], "squashfs-root"))
		}
	}
	want := []string{"drwxr-xr-x 0/0 ", "-rw-r--r-- 0/0 /a", "drwxr-xr-x 0/0 /deep", "drwxr-xr-x 0/0 /deep/proc", "-rw-r--r-- 0/0 /deep/proc/x",
		"drwxr-xr-x 0/0 /dev", "crw-r----- 0/0 /dev/tape", "drwxr-xr-x 0/0 /proc"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	first, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := Pack(t.Context(), root, out, o); err != nil {
		t.Fatal(err)
	}
	if second, _ := os.ReadFile(out); string(first) != string(second) {
		t.Error("the same folder gave two squashfs files")
	}
}

func TestPack_Errors(t *testing.T) {
	needPacker(t)
	// fake is a mksquashfs that leaves a half file, says so and ends like this.
	fake := func(script string) string {
		p := filepath.Join(t.TempDir(), "mksquashfs")
		if err := os.WriteFile(p, []byte("#!/bin/sh\necho half > \"$2\"\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		name, program, text string
		is                  error
	}{
		{"disk", fake("echo 'Write failed because No space left on device'; echo 'FATAL ERROR:Probably out of space on output filesystem'; exit 1"), "No space left on device", ErrDiskFull},
		{"quota", fake("echo 'Write failed because Disk quota exceeded' >&2; exit 1"), "Disk quota exceeded", ErrDiskFull},
		{"killed", fake("kill -9 $$"), "want of memory", ErrStarved},
		{"threads", fake("echo 'FATAL ERROR:Failed to create thread' >&2; exit 1"), "Failed to create thread", ErrStarved},
		{"memory", fake("echo 'FATAL ERROR:Out of memory (get_fragment)' >&2; exit 1"), "Out of memory", ErrStarved},
		{"missing", "/nonexistent/mksquashfs", "install squashfs-tools", ErrNoPacker},
		{"other", fake("echo 'FATAL ERROR:no such thing' >&2; exit 3"), "exit status 3: no such thing", nil},
		{"no compressor at all", fake("echo \"mksquashfs: Compressor \\\"$9\\\" is not supported!\" >&2; exit 1"), `Compressor "gzip"`, nil},
	} {
		out := filepath.Join(t.TempDir(), "out")
		err := Pack(t.Context(), t.TempDir(), out, PackOptions{Program: c.program})
		if err == nil || !strings.Contains(err.Error(), c.text) || (c.is != nil && !errors.Is(err, c.is)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := os.Lstat(out); err == nil {
			t.Errorf("%s: a half file stayed", c.name)
		}
	}

	old := fake(`[ "$9" = gzip ] || { echo "mksquashfs: Compressor \"$9\" is not supported!" >&2; exit 1; }`)
	out := filepath.Join(t.TempDir(), "out")
	if err := Pack(t.Context(), t.TempDir(), out, PackOptions{Program: old}); err != nil {
		t.Errorf("a mksquashfs without zstd: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Pack(ctx, t.TempDir(), out, PackOptions{Program: old}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A file that cannot be read is not left out in silence.
func TestPack_Unreadable(t *testing.T) {
	needPacker(t)
	sandboxtest.Run(t, func(t *testing.T) {
		root, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
		plant(t, root, map[string]string{"a": "x", "closed": "x"})
		if err := Pack(t.Context(), root, out, PackOptions{Processors: 1, MemMiB: 64}); err != nil {
			t.Fatalf("the control: %v", err)
		}
		if err := os.Chmod(filepath.Join(root, "closed"), 0); err != nil {
			t.Fatal(err)
		}
		if err := Pack(t.Context(), root, out, PackOptions{Processors: 1, MemMiB: 64}); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%v", err)
		}
		if _, err := os.Lstat(out); err == nil {
			t.Error("a half file stayed")
		}
	})
}
