package images

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const good = "shows\n-- Dockerfile --\nFROM base\n-- want --\non base\nfile 0644 0:0 /o \"\"\n-- config --\n{}\n"

func TestParse(t *testing.T) {
	c, err := Parse("name", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "name" || c.Shows != "shows" || string(c.Dockerfile) != "FROM base\n" || c.On != "base" ||
		c.Want != "file 0644 0:0 /o \"\"\n" || c.Config != "{}\n" || c.Error != nil || c.Args.File != "Dockerfile" {
		t.Errorf("read as %+v", c)
	}
	c, err = Parse("name", []byte("shows\n-- Dockerfile --\nx\n-- args --\ntarget=t\narg=A=b=c\narg=E=\ncontext=n=d/e\nsecret=s=f\nplatform=linux/arm64\nfile=sub/File\nserve=w\nmtimes\n-- error --\nsub/File:1: .*x\n# words\n"))
	if err != nil {
		t.Fatal(err)
	}
	a := c.Args
	if a.Target != "t" || a.Build["A"] != "b=c" || a.Build["E"] != "" || len(a.Build) != 2 || a.Contexts["n"] != "d/e" ||
		a.Secrets["s"] != "f" || a.Platform != "linux/arm64" || a.File != "sub/File" || a.Serve != "w" || !a.MTimes {
		t.Errorf("args are read as %+v", a)
	}
	if !c.Error.MatchString("sub/File:1: there is an x") || c.Error.MatchString("# words") {
		t.Errorf("the error is read as %q", c.Error)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, x := range []struct{ old, new, words string }{
		{"shows\n", "", "comment"},
		{"shows\n", "two\nlines\n", "comment"},
		{"-- Dockerfile --", "-- Dockerflie --", "Dockerflie"},
		{"-- want --", "-- Dockerfile --", "two files"},
		{"-- Dockerfile --\nFROM base\n", "", "neither Dockerfile nor setup"},
		{"on base\n", "", "on base"},
		{"-- config --\n{}\n", "", "run the oracle"},
		{"-- want --\non base\nfile 0644 0:0 /o \"\"\n", "", "run the oracle"},
		{"-- want --", "-- error --\nx\n-- want --", "and yet"},
		{"-- want --", "-- error --\n\n-- want --", "empty line"},
		{"-- want --", "-- error --\n(\n-- want --", "error: "},
		{"-- want --", "-- args --\nmtime\n-- want --", "means nothing"},
		{"-- want --", "-- args --\ncontext=n=../x\n-- want --", "inside the context"},
		{"-- want --", "-- args --\nserve=/\n-- want --", "inside the context"},
		{"-- want --", "-- args --\nsecret=n\n-- want --", "inside the context"},
	} {
		text := strings.Replace(good, x.old, x.new, 1)
		if text == good {
			t.Fatalf("%q is not in the case", x.old)
		}
		c, err := Parse("name", []byte(text))
		if err == nil || !strings.Contains(err.Error(), x.words) || !strings.HasPrefix(err.Error(), "case name: ") {
			t.Errorf("%q for %q: error %v, wanted one with %q", x.new, x.old, err, x.words)
		}
		if c.Shows != "" || c.Dockerfile != nil {
			t.Errorf("%q for %q: an error, and yet %+v", x.new, x.old, c)
		}
	}
}

func TestMakeContext(t *testing.T) {
	c := Case{Name: "x", Dockerfile: []byte("FROM x\n"), Args: Args{File: "sub/Dockerfile"},
		Setup: "printf 'a\\r\\n' > f; ln -s f l; mkdir d; chmod 4751 f; echo \"$0 $TZ ${HOME-none}\" > env"}
	dir := t.TempDir()
	if err := c.MakeContext(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"sub/Dockerfile": "FROM x\n", "l": "a\r\n", "env": "/bin/sh UTC none\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), not %q", name, got, err, want)
		}
	}
	for name, want := range map[string]os.FileMode{"f": 0o751 | os.ModeSetuid, "d": 0o755 | os.ModeDir} {
		if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || fi.Mode() != want {
			t.Errorf("%s has mode %v (%v), not %v", name, fi.Mode(), err, want)
		}
	}
	// A Dockerfile that setup makes is kept, and a setup that fails says so.
	c = Case{Name: "x", Dockerfile: []byte("FROM x\n"), Args: Args{File: "Dockerfile"}, Setup: "echo mine > Dockerfile"}
	if err := c.MakeContext(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "Dockerfile")); err != nil || string(got) != "mine\n" {
		t.Errorf("Dockerfile is %q (%v)", got, err)
	}
	c.Setup = "echo words >&2; false; true"
	if err := c.MakeContext(context.Background(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "words") {
		t.Errorf("a setup with a command that fails: %v", err)
	}
}

func TestServe(t *testing.T) {
	c, err := Parse("name", []byte(strings.Replace(good, "-- want --", "-- setup --\nmkdir w; echo f > w/f; touch -d @1000000000 w/f; ln -s /etc w/out\n-- args --\nserve=w\n-- want --", 1)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := c.MakeContext(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	stop, err := c.Serve(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	get := func(path string) (int, string, string) {
		t.Helper()
		answer, err := http.Get(c.Args.Build["URL"] + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body), answer.Header.Get("Last-Modified")
	}
	if status, body, at := get("/f"); status != 200 || body != "f\n" || at != "Sun, 09 Sep 2001 01:46:40 GMT" {
		t.Errorf("/f is %d, %q, of %s", status, body, at)
	}
	if status, body, _ := get("/out/passwd"); status == 200 {
		t.Errorf("/out/passwd, behind a link, is %d, %q", status, body)
	}
}

// Every case is complete, and its own error would be recognised in what
// BuildKit says, were that on one line.
func TestCases(t *testing.T) {
	cases, err := Load("cases")
	if err != nil {
		t.Fatal(err)
	}
	shows := map[string]string{}
	for _, c := range cases {
		if other, ok := shows[c.Shows]; ok {
			t.Errorf("%s and %s show the same: %s", c.Name, other, c.Shows)
		}
		shows[c.Shows] = c.Name
		if c.Error != nil && c.Error.MatchString("") {
			t.Errorf("%s: %q matches every error", c.Name, c.Error)
		}
		if c.Config != "" {
			if again, err := Canonical([]byte(c.Config)); err != nil || again != c.Config {
				t.Errorf("%s: config is not as Canonical writes it: %v", c.Name, err)
			}
		}
	}
}

// The context of every case can be made here.
func TestContexts(t *testing.T) {
	cases, err := Load("cases")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := c.MakeContext(context.Background(), dir); err != nil {
				t.Fatal(err)
			}
			for name, path := range c.Args.Contexts {
				if fi, err := os.Stat(filepath.Join(dir, path)); err != nil || !fi.IsDir() {
					t.Errorf("the context %s is no folder: %v", name, err)
				}
			}
			for id, path := range c.Args.Secrets {
				if fi, err := os.Stat(filepath.Join(dir, path)); err != nil || !fi.Mode().IsRegular() {
					t.Errorf("the secret %s is no file: %v", id, err)
				}
			}
		})
	}
}
