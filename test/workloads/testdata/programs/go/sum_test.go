package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSum(t *testing.T) {
	if got := sum(100); got != 5050 {
		t.Fatal(got)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "f"), filepath.Join(dir, "d", "f")); err != nil {
		t.Fatal(err)
	}
}
