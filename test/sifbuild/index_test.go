package sifbuild

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fence/test/bed"
)

// pypi is a package index with one wheel, hello-sif, and says where it is.
func pypi(t *testing.T) string {
	t.Helper()
	const info = "hello_sif-1.0.dist-info/"
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for _, f := range [][2]string{
		{"hello_sif/__init__.py", "def main():\n    print('hello from a wheel')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: hello-sif\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\nhello-sif = hello_sif:main\n"},
		{info + "RECORD", "hello_sif/__init__.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "entry_points.txt,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	const name = "hello_sif-1.0-py3-none-any.whl"
	return serve(t, map[string]string{
		"/simple/hello-sif/": `<!DOCTYPE html><a href="/files/` + name + `">` + name + `</a>`,
		"/files/" + name:     wheel.String(),
	})
}

// npmRegistry has one package, hello-sif, with an install script.
func npmRegistry(t *testing.T) string {
	t.Helper()
	about := map[string]any{"name": "hello-sif", "version": "1.0.0", "main": "index.js", "scripts": map[string]string{"install": "echo by its script > installed"}}
	manifest, err := json.Marshal(about)
	if err != nil {
		t.Fatal(err)
	}
	var tgz bytes.Buffer
	gz := gzip.NewWriter(&tgz)
	w := tar.NewWriter(gz)
	for name, text := range map[string]string{"package.json": string(manifest), "index.js": "console.log('hello from npm')\n"} {
		if err := w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(tgz.Bytes())
	files := map[string]string{"/hello-sif/-/hello-sif-1.0.0.tgz": tgz.String()}
	url := serve(t, files)
	about["dist"] = map[string]string{"tarball": url + "/hello-sif/-/hello-sif-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	doc, err := json.Marshal(map[string]any{"name": "hello-sif", "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": about}})
	if err != nil {
		t.Fatal(err)
	}
	files["/hello-sif"] = string(doc)
	return url
}

// serve answers with the files on this node's loopback until the test is over.
func serve(t *testing.T, files map[string]string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if filepath.Ext(r.URL.Path) == "" && text[0] == '{' {
			w.Header().Set("Content-Type", "application/json")
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// nodejs is this machine's node, and the folder of its npm.
func nodejs(t *testing.T) (node, npm string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		bed.Missing(t, "node")
	}
	if node, err = filepath.EvalSymlinks(node); err != nil {
		t.Fatal(err)
	}
	npm, err = exec.LookPath("npm")
	if err == nil {
		npm, err = filepath.EvalSymlinks(npm)
	}
	npm = filepath.Dir(filepath.Dir(npm))
	if err == nil {
		_, err = os.Stat(filepath.Join(npm, "bin/npm-cli.js"))
	}
	if err != nil {
		bed.Missing(t, "npm (%v)", err)
	}
	return node, npm
}
