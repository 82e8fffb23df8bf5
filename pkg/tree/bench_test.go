package tree

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// smallFiles is 3,000 files of 4 KiB in 60 folders.
func smallFiles(b *testing.B) string {
	b.Helper()
	root := b.TempDir()
	data := make([]byte, 4<<10)
	for d := range 60 {
		dir := filepath.Join(root, fmt.Sprint("d", d))
		must(b, os.Mkdir(dir, 0o755))
		for f := range 50 {
			_, _ = rand.Read(data)
			must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint("f", f)), data, 0o644))
		}
	}
	b.SetBytes(3000 * 4 << 10)
	return root
}

// bigFile is one of 512 MiB.
func bigFile(b *testing.B) string {
	b.Helper()
	root := b.TempDir()
	f, err := os.Create(filepath.Join(root, "big"))
	must(b, err)
	_, err = io.CopyN(f, rand.Reader, 512<<20)
	must(b, err)
	must(b, f.Close())
	b.SetBytes(512 << 20)
	return root
}

func BenchmarkSelect(b *testing.B) {
	for name, grow := range map[string]func(*testing.B) string{"small": smallFiles, "big": bigFile} {
		b.Run(name, func(b *testing.B) {
			root := grow(b)
			for b.Loop() {
				_, err := Select(root, Selection{Sources: []string{"."}, Hash: true})
				must(b, err)
			}
		})
		b.Run(name+"/sha256sum", func(b *testing.B) {
			root := grow(b)
			for b.Loop() {
				must(b, exec.Command("sh", "-c", "find "+root+" -type f -print0 | xargs -0 sha256sum > /dev/null").Run())
			}
		})
	}
}

func BenchmarkCopy(b *testing.B) {
	for name, grow := range map[string]func(*testing.B) string{"small": smallFiles, "big": bigFile} {
		for _, hash := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/hash=%v", name, hash), func(b *testing.B) {
				root, base := grow(b), b.TempDir()
				matches, err := Select(root, Selection{Sources: []string{"."}, Hash: hash})
				must(b, err)
				for i := 0; b.Loop(); i++ {
					dst := filepath.Join(base, fmt.Sprint(i))
					must(b, os.Mkdir(dst, 0o755))
					_, err := Copy(dst, CopyRequest{Root: root, Matches: matches, Dest: "/"})
					must(b, err)
					b.StopTimer()
					must(b, RemoveAll(dst))
					b.StartTimer()
				}
			})
		}
		b.Run(name+"/cp -a", func(b *testing.B) {
			root, base := grow(b), b.TempDir()
			for i := 0; b.Loop(); i++ {
				dst := filepath.Join(base, fmt.Sprint(i))
				must(b, exec.Command("cp", "-a", root, dst).Run())
				b.StopTimer()
				must(b, RemoveAll(dst))
				b.StartTimer()
			}
		})
	}
}

func BenchmarkLayer(b *testing.B) {
	for name, grow := range map[string]func(*testing.B) string{"small": smallFiles, "big": bigFile} {
		b.Run(name+"/pack", func(b *testing.B) {
			root := grow(b)
			for b.Loop() {
				must(b, Pack(io.Discard, root, nil, PackOptions{}))
			}
		})
		b.Run(name+"/tar c", func(b *testing.B) {
			root := grow(b)
			for b.Loop() {
				must(b, exec.Command("sh", "-c", "tar -C "+root+" -c . | cat > /dev/null").Run()) // tar itself skips the bytes for /dev/null
			}
		})
		var data bytes.Buffer
		unpack := func(b *testing.B, f func(dir string)) {
			root, base := grow(b), b.TempDir()
			data.Reset()
			must(b, Pack(&data, root, nil, PackOptions{}))
			for i := 0; b.Loop(); i++ {
				dir := filepath.Join(base, fmt.Sprint(i))
				must(b, os.Mkdir(dir, 0o755))
				f(dir)
				b.StopTimer()
				must(b, RemoveAll(dir))
				b.StartTimer()
			}
		}
		b.Run(name+"/unpack", func(b *testing.B) {
			unpack(b, func(dir string) {
				_, err := Unpack(bytes.NewReader(data.Bytes()), dir, UnpackOptions{Apply: true})
				must(b, err)
			})
		})
		b.Run(name+"/tar x", func(b *testing.B) {
			unpack(b, func(dir string) {
				cmd := exec.Command("tar", "-C", dir, "-x")
				cmd.Stdin = bytes.NewReader(data.Bytes())
				must(b, cmd.Run())
			})
		})
	}
}
