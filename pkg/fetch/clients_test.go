package fetch

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fence/pkg/fetch/index"
	"fence/test/bed"
)

// The tests here have the real apt, pip and npm of this machine download
// through the proxy, as an ordinary user.

// client is a command of a build's, which has to be on this machine.
func client(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := bed.Command(t, name, args...)
	if cmd.Err != nil {
		bed.Missing(t, "%s, which comes with the Debian package %s", name, map[string]string{"apt-get": "apt", "pip3": "python3-pip", "npm": "npm", "dpkg-deb": "dpkg"}[name])
	}
	cmd.Dir = dir
	return cmd
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// write makes a file that the ordinary user reads.
func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// folder makes a folder that is the ordinary user's.
func folder(t *testing.T, path string) string {
	t.Helper()
	uid, gid, _ := bed.User(t)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
	return path
}

// aptRepository is a flat repository with one package, and the package.
func aptRepository(t *testing.T) (dir, pkg string) {
	t.Helper()
	dir = bed.TempDir(t)
	root := folder(t, filepath.Join(dir, "build"))
	folder(t, filepath.Join(root, "DEBIAN"))
	write(t, filepath.Join(root, "DEBIAN", "control"), "Package: hello-fence\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <n@example.org>\nDescription: nothing\n")
	write(t, filepath.Join(root, "data"), strings.Repeat("0123456789abcdef\n", 1000))
	folder(t, filepath.Join(dir, "pool"))
	pkg = "pool/hello-fence_1_all.deb"
	run(t, client(t, dir, "dpkg-deb", "--root-owner-group", "-Znone", "-b", root, pkg))
	deb, err := os.ReadFile(filepath.Join(dir, pkg))
	if err != nil {
		t.Fatal(err)
	}
	packages := fmt.Sprintf("Package: hello-fence\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <n@example.org>\nFilename: %s\nSize: %d\nSHA256: %x\nDescription: nothing\n\n", pkg, len(deb), sum256(string(deb)))
	sum := fmt.Sprintf("%x", sum256(packages))
	write(t, filepath.Join(folder(t, filepath.Join(dir, "by-hash/SHA256")), sum), packages)
	write(t, filepath.Join(dir, "Packages"), packages)
	write(t, filepath.Join(dir, "Release"), fmt.Sprintf("Acquire-By-Hash: yes\nDate: Fri, 02 Jan 2026 00:00:00 UTC\nSHA256:\n %s %d Packages\n", sum, len(packages)))
	return dir, pkg
}

// aptBuild is a build with an apt of its own that knows deb.test alone.
func aptBuild(t *testing.T, w *world) func(args ...string) *exec.Cmd {
	t.Helper()
	dir := bed.TempDir(t)
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial", "etc", "got"} {
		folder(t, filepath.Dir(filepath.Join(dir, sub)))
		folder(t, filepath.Join(dir, sub))
	}
	write(t, filepath.Join(dir, "status"), "")
	conf := write(t, filepath.Join(dir, "apt.conf"), string(w.proxy.AptConfig())+fmt.Sprintf(`
Dir::State "%[1]s/state"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s/cache"; Dir::Etc "%[1]s/etc";
Dir::Etc::sourcelist "%[1]s/sources.list"; Acquire::Retries "2";
`, dir))
	write(t, filepath.Join(dir, "sources.list"), "deb [trusted=yes] http://deb.test/ ./\n")
	return func(args ...string) *exec.Cmd {
		cmd := client(t, filepath.Join(dir, "got"), "apt-get", args...)
		cmd.Env = append(cmd.Env, "APT_CONFIG="+conf, "http_proxy=http://127.0.0.1:1/")
		return cmd
	}
}

func TestApt(t *testing.T) {
	repository, pkg := aptRepository(t)
	want, err := os.ReadFile(filepath.Join(repository, pkg))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	cut := make(chan struct{}, 1)
	cut <- struct{}{}
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-cut: // the first time the package breaks off, and cannot be resumed
			if !strings.HasSuffix(r.URL.Path, ".deb") {
				cut <- struct{}{}
				break
			}
			rw.Header().Set("Content-Length", fmt.Sprint(len(want)))
			_, _ = rw.Write(want[:len(want)/2])
			panic(http.ErrAbortHandler)
		default:
		}
		http.ServeFile(rw, r, filepath.Join(repository, filepath.Clean(r.URL.Path)))
	})
	var all sync.WaitGroup
	for range 3 {
		apt := aptBuild(t, w)
		all.Go(func() {
			for _, args := range [][]string{{"update"}, {"download", "hello-fence"}, {"install", "-y", "--download-only", "hello-fence"}} {
				cmd := apt(args...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %v\n%s", args, err, out)
					return
				}
			}
			got, err := os.ReadFile(filepath.Join(apt().Dir, filepath.Base(pkg)))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
			}
		})
	}
	all.Wait()
	if n := w.asked("GET http://deb.test/" + pkg); n != 2 {
		t.Errorf("the package was fetched %d times, and once would have been enough after the cut: %v", n, w.seen)
	}
	hashed := 0
	for line, n := range w.seen {
		if strings.Contains(line, "/by-hash/") {
			hashed += n
		}
	}
	if hashed != 1 {
		t.Errorf("the index was fetched %d times: %v", hashed, w.seen)
	}
}

// TestAptBelievesItsArchives is why builds share no folder: of a package that
// lies there apt looks at the size alone.
func TestAptBelievesItsArchives(t *testing.T) {
	repository, pkg := aptRepository(t)
	w := newWorld(t)
	w.serve("deb.test", func(rw http.ResponseWriter, r *http.Request) {
		http.ServeFile(rw, r, filepath.Join(repository, filepath.Clean(r.URL.Path)))
	})
	good, err := os.ReadFile(filepath.Join(repository, pkg))
	if err != nil {
		t.Fatal(err)
	}
	for name, planted := range map[string][]byte{"the same size": bytes.ToUpper(good), "another size": append([]byte("x"), good...)} {
		apt := aptBuild(t, w)
		archive := filepath.Join(filepath.Dir(apt().Dir), "cache/archives", filepath.Base(pkg))
		write(t, archive, string(planted))
		run(t, apt("update"))
		run(t, apt("install", "-y", "--download-only", "hello-fence"))
		got, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if believed := bytes.Equal(got, planted); believed != (name == "the same size") || (!believed && !bytes.Equal(got, good)) {
			t.Errorf("a planted package of %s: believed: %v", name, believed)
		}
	}
}

func TestPip(t *testing.T) {
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"fence_hello.py":                       "print('hello')\n",
		"fence_hello-1.0.dist-info/METADATA":   "Metadata-Version: 2.1\nName: fence-hello\nVersion: 1.0\n",
		"fence_hello-1.0.dist-info/WHEEL":      "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"fence_hello-1.0.dist-info/RECORD":     "",
		"fence_hello-1.0.dist-info/top_level":  "fence_hello\n",
		"fence_hello-1.0.dist-info/INSTALLER_": strings.Repeat("x", 10_000),
	} {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, text)
	}
	z.Close()
	const file = "fence_hello-1.0-py3-none-any.whl"
	sum := fmt.Sprintf("%x", sum256(wheel.String()))
	w := newWorld(t)
	page, kind := "", ""
	w.serve("pypi.test", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", kind)
		fmt.Fprint(rw, page)
	})
	w.serve("files.test", func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, file, time.Time{}, bytes.NewReader(wheel.Bytes()))
	})
	for _, c := range []struct{ kind, page string }{
		{"text/html", `<a href="http://files.test/x/` + file + `#sha256=` + sum + `" data-requires-python="&gt;=3">` + file + `</a>`},
		{index.SimpleJSON, `{"meta":{"api-version":"1.0"},"name":"fence-hello","files":[{"filename":"` + file + `","url":"http://files.test/x/` + file + `","hashes":{"sha256":"` + sum + `"}}]}`},
	} {
		page, kind = c.page, c.kind
		w.later(time.Hour)
		dir := bed.TempDir(t)
		conf := write(t, filepath.Join(dir, "pip.conf"), string(w.proxy.PipConfig()))
		folder(t, filepath.Join(dir, "got"))
		pip := client(t, dir, "pip3", "install", "--target", "got", "--no-cache-dir", "--disable-pip-version-check", "Fence.Hello")
		pip.Env = append(pip.Env, "PIP_CONFIG_FILE="+conf)
		out := run(t, pip)
		if got, err := os.ReadFile(filepath.Join(dir, "got", "fence_hello.py")); err != nil || string(got) != "print('hello')\n" {
			t.Errorf("%s: %q, %v\n%s", c.kind, got, err, out)
		}
	}
	if n := w.asked("GET http://files.test/x/" + file); n != 1 {
		t.Errorf("the wheel was fetched %d times", n)
	}
}

// npmTarball is a package with nothing in it.
func npmTarball(t *testing.T, name string) (tgz []byte, integrity string) {
	t.Helper()
	var b bytes.Buffer
	g := gzip.NewWriter(&b)
	a := tar.NewWriter(g)
	text := `{"name":"` + name + `","version":"1.0.0"}`
	if err := a.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(a, text)
	a.Close()
	g.Close()
	sum := sha512.Sum512(b.Bytes())
	return b.Bytes(), "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

func TestNpm(t *testing.T) {
	w := newWorld(t)
	// The registry that npm replaces in lock files by the one it is told: its own default.
	asked := bed.TempDir(t)
	own := client(t, asked, "npm", "config", "get", "registry", "--globalconfig="+filepath.Join(asked, "no-global"), "--userconfig="+filepath.Join(asked, "no-user"))
	registry := strings.TrimRight(strings.TrimSpace(run(t, own)), "/")
	lock := `{"name":"x","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"":{"name":"x","version":"1.0.0","dependencies":{"fence-hello":"1.0.0","@fence/hello":"1.0.0"}}`
	tarballs := map[string][]byte{}
	packuments := map[string]string{}
	for _, name := range []string{"fence-hello", "@fence/hello"} {
		tgz, integrity := npmTarball(t, name)
		at := "/" + name + "/-/" + path.Base(name) + "-1.0.0.tgz"
		tarballs[at] = tgz
		packuments["/"+name] = fmt.Sprintf(`{"name":%[1]q,"dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":%[1]q,"version":"1.0.0","dist":{"tarball":"http://npm.test%[2]s","integrity":%[3]q}}}}`, name, at, integrity)
		lock += fmt.Sprintf(`,"node_modules/%s":{"version":"1.0.0","resolved":%q,"integrity":%q}`, name, registry+at, integrity)
	}
	w.serve("npm.test", func(rw http.ResponseWriter, r *http.Request) {
		if tgz := tarballs[r.URL.Path]; tgz != nil {
			_, _ = rw.Write(tgz)
		} else if text := packuments[r.URL.Path]; text != "" {
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprint(rw, text)
		} else {
			http.NotFound(rw, r)
		}
	})
	npm := func(dir string, args ...string) {
		t.Helper()
		conf := write(t, filepath.Join(dir, "npmrc"), string(w.proxy.NpmConfig()))
		cmd := client(t, dir, "npm", append(args, "--globalconfig="+conf, "--userconfig="+filepath.Join(dir, "none"), "--cache="+filepath.Join(dir, "cache"), "--fetch-retries=0")...)
		out := run(t, cmd)
		for _, name := range []string{"fence-hello", "@fence/hello"} {
			if got, err := os.ReadFile(filepath.Join(dir, "node_modules", name, "package.json")); err != nil || !strings.Contains(string(got), `"version":"1.0.0"`) {
				t.Errorf("npm %s: %s: %q, %v\n%s", args[0], name, got, err, out)
			}
		}
		for _, name := range []string{"package-lock.json", "node_modules/.package-lock.json"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || strings.Contains(string(text), w.proxy.token) || strings.Contains(string(text), "127.0.0.1") {
				t.Errorf("npm %s leaves in %s: %s, %v", args[0], name, text, err)
			}
		}
	}
	fresh := bed.TempDir(t)
	npm(fresh, "install", "fence-hello", "@fence/hello")
	locked := bed.TempDir(t)
	write(t, filepath.Join(locked, "package.json"), `{"name":"x","version":"1.0.0","dependencies":{"fence-hello":"1.0.0","@fence/hello":"1.0.0"}}`)
	write(t, filepath.Join(locked, "package-lock.json"), lock+"}}")
	npm(locked, "ci")
	for path := range tarballs {
		if n := w.asked("GET http://npm.test" + path); n != 1 {
			t.Errorf("%s was fetched %d times", path, n)
		}
	}
}
