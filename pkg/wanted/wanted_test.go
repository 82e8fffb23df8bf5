package wanted

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"fence/pkg/wheel"
)

// container of a test: files by their absolute paths.
func files(m map[string]string) func(string) (string, []byte, error) {
	return func(abs string) (string, []byte, error) {
		text, ok := m[abs]
		if !ok {
			return "", nil, fmt.Errorf("%s is not a file of the task", abs)
		}
		return abs, []byte(text), nil
	}
}

// lines are sets in a form to compare.
func lines(sets []wheel.Set) []string {
	var all []string
	for _, s := range sets {
		var b strings.Builder
		for _, r := range s.Requirements {
			b.WriteString(r.String() + " ")
		}
		for _, r := range s.Constraints {
			b.WriteString("(" + r.String() + ") ")
		}
		for _, v := range [][2]string{{"python", s.Python}, {"index", s.Index}} {
			if v[1] != "" {
				b.WriteString(v[0] + ":" + v[1] + " ")
			}
		}
		if s.NoDeps {
			b.WriteString("no-deps ")
		}
		if s.Universal {
			b.WriteString("universal ")
		}
		if len(s.ExtraIndexes)+len(s.FindLinks) > 0 {
			fmt.Fprintf(&b, "%q %q ", s.ExtraIndexes, s.FindLinks)
		}
		all = append(all, b.String()+"@ "+strings.Join(s.From, "; "))
	}
	return all
}

func unread(list []wheel.Unread) []string {
	var all []string
	for _, u := range list {
		all = append(all, u.Where+" | "+u.Text+" | "+u.Reason)
	}
	return all
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s: not wanted: %s", what, line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s: missing: %s", what, line)
		}
	}
}

func TestScript(t *testing.T) {
	text, err := os.ReadFile("testdata/script.sh")
	if err != nil {
		t.Fatal(err)
	}
	r := &result{}
	script{name: "t s.sh", line: 1, cwd: "/app", env: map[string]string{"V": "1.2"}, file: files(map[string]string{
		"/app/r.txt":             "a==1 --hash=sha256:00 # why\n-r s.txt\n-i https://i.test/simple\n-e .\nfoo @ file:///etc/passwd\nb${X}\n",
		"/app/s.txt":             "b ; python_version < '3.8'\nc>=1, \\\n <2\n",
		"/tests/constraints.txt": "sqlparse<1\n",
	})}.read(r, string(text), 0)
	same(t, "sets", lines(r.sets), []string{
		"pytest pytest==8.4.1 pytest-json-ctrf==0.3.5 python:3.13 @ t s.sh:6",
		"numpy>=1,<2 scipy==1.2 x[y]~=1.0 @ t s.sh:11",
		"pandas==2.1 @ t s.sh:13",
		"a==1 b ; python_version < '3.8' c>=1,<2 python:3.11 index:https://i.test/simple @ t s.sh:14",
		"six @ t s.sh:15",
		"attrs @ t s.sh:16",
		"rich>=13,<14 python:3.12 @ t s.sh:20",
		"pytest==8.4.1 universal @ t s.sh:21",
		"torch index:https://index.test/cpu @ t s.sh:24",
		"ruff==0.5.0 @ t s.sh:25",
		"httpie @ t s.sh:26",
		"flask index:https://other.test/simple no-deps @ t s.sh:27",
		"inner @ t s.sh:32",
		"offline @ t s.sh:37",
		"django (sqlparse<1) @ t s.sh:38",
	})
	same(t, "unread", unread(r.unread), []string{
		`t s.sh:11 | pip install -qU "numpy>=1,<2" scipy==$V 'x[y]~=1.0' requests==$(cat v) | it depends on the output of a command`,
		"t s.sh:14, /app/r.txt:4 | -e . | -e . is of the container: what it needs is not known here",
		"t s.sh:14, /app/r.txt:5 | foo @ file:///etc/passwd | it is fetched from an address, not from an index",
		"t s.sh:14, /app/r.txt:6 | b${X} | it depends on a variable",
		"t s.sh:17 | xargs pip install | xargs is not a command whose arguments are known here",
		"t s.sh:18 | pip install -e . ./x.whl git+https://git.test/b | -e . is of the container: what it needs is not known here",
		"t s.sh:18 | ./x.whl | it is a folder or file of the container: what it needs is not known here",
		"t s.sh:18 | git+https://git.test/b | it is fetched from an address, not from an index",
		"t s.sh:19 | pip install $i | it depends on $i, which is not known before it runs",
		"t s.sh:23 | pip install --weird x | the option --weird is not known here",
		"t s.sh:28 | pip install -r https://files.test/r.txt | https://files.test/r.txt is fetched from an address: what is in it is not known here",
		"t s.sh:35 | poetry install | poetry takes packages from elsewhere: what it needs is not known here",
		"t s.sh:36 | uv sync | uv sync takes packages from a project's lock: what it needs is not known here",
	})
}

func TestScript_Places(t *testing.T) {
	for text, want := range map[string]string{
		"pip install -r r.txt":                          "here",
		"cd /other && pip install -r r.txt":             "other",
		"cd sub; pip install -r r.txt":                  "sub",
		"pip install -r /other/r.txt":                   "other",
		"pip install -r r.txt; cd /other":               "here",
		"cd /other; cd /app; pip install -r r.txt":      "",
		"cd $X && pip install -r r.txt":                 "",
		"D=/other; pip install -r $D/r.txt":             "other",
		"D=/other; D=/app; pip install -r $D/r.txt":     "",
		"read D; pip install -r $D/r.txt":               "",
		"for D in /other; do pip install -r $D/r; done": "",
		"D=${D:-/other}; pip install -r $D/r.txt":       "",
		"D+=x; pip install -r $D/r.txt":                 "",
		"pip install -r ~/r.txt":                        "",
		"PIP=pip; $PIP install -r r.txt":                "here",
		"$PIP install -r r.txt":                         "",
		"pip install -rr.txt":                           "here",
		"uv pip sync r.txt":                             "here",
		"pip install -r r.txt <<< x":                    "here",
		"if ! pip install -r r.txt; then":               "",
		"(cd /other && pip install -r r.txt)":           "other",
		"pip install -r {r,s}.txt":                      "here",
		"timeout -k 5 60 env A=b pip install -r r.txt":  "here",
		"time pip install -r r.txt":                     "here",
		"f() { pip install -r r.txt; }":                 "here",
		"uv run --with-requirements r.txt x":            "here",
		"pip install {1..999999999}":                    "",
		"retry pip install -r r.txt":                    "",
		"eval 'pip install -r r.txt'":                   "",
		"pip install":                                   "nothing",
		"pip freeze -r r.txt":                           "nothing",
		"python pip install -r r.txt":                   "nothing",
	} {
		r := &result{}
		script{name: "s", line: 1, cwd: "/app", file: files(map[string]string{"/app/r.txt": "here", "/other/r.txt": "other", "/app/sub/r.txt": "sub", "/app/s.txt": ""})}.read(r, text, 0)
		got := ""
		if len(r.sets) == 1 {
			got = r.sets[0].Requirements[0].String()
		} else if len(r.sets) == 0 && len(r.unread) == 0 {
			got = "nothing"
		}
		if got != want || got == "" && len(r.unread) == 0 {
			t.Errorf("%s: %q, want %q; %v", text, got, want, unread(r.unread))
		}
	}
}

func FuzzScript(f *testing.F) {
	text, err := os.ReadFile("testdata/script.sh")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add("pip install -r r.txt")
	f.Fuzz(func(t *testing.T, text string) {
		r := &result{}
		script{name: "s", line: 1, cwd: "/app", file: func(abs string) (string, []byte, error) { return abs, []byte(text), nil }}.read(r, text, 0)
		for _, s := range r.sets {
			for _, q := range s.Requirements {
				if again, err := wheel.ParseRequirement(q.String()); err != nil || again.String() != q.String() || strings.HasPrefix(q.String(), "-") {
					t.Errorf("%q is read as %q, %v", q, again, err)
				}
			}
			for _, u := range slices.Concat([]string{s.Index}, s.ExtraIndexes, s.FindLinks) {
				if u != "" && !strings.HasPrefix(strings.ToLower(u), "http") {
					t.Errorf("the index %q", u)
				}
			}
		}
	})
}

// What is listed has no name and password of an index.
func TestScript_Credentials(t *testing.T) {
	r := &result{}
	script{name: "x", line: 1, cwd: "/", env: map[string]string{}}.read(r, "pip install --weird -i https://me:word@index.test/simple x\npip install git+https://token@git.test/b -r https://me:word@files.test/r\n", 0)
	for _, u := range r.unread {
		if strings.Contains(u.Text+u.Reason, "word") || strings.Contains(u.Text+u.Reason, "token") {
			t.Errorf("%+v", u)
		}
	}
	if len(r.unread) != 3 {
		t.Errorf("%+v", r.unread)
	}
}

// A script that is made to end whoever reads it (the parser's stack, variables
// that double) is listed as one that cannot be read.
func TestScript_Bombs(t *testing.T) {
	var grow strings.Builder
	grow.WriteString("a0=" + strings.Repeat("x", 1<<10) + "\n")
	for i := range 40 {
		fmt.Fprintf(&grow, "a%d=$a%d$a%[2]d\n", i+1, i)
	}
	for name, text := range map[string]string{
		"open":     strings.Repeat("$(", 1<<20),
		"long":     strings.Repeat("(", scriptMax) + "pip",
		"deep":     strings.Repeat("(", scriptMax-10) + "pip",
		"closed":   strings.Repeat("{ ", nestMax) + "pip install x;" + strings.Repeat("}; ", nestMax),
		"chain":    strings.Repeat("pip && ", 10*nestMax) + "pip install x",
		"variable": grow.String() + "pip install $a40",
	} {
		r := &result{}
		script{name: "x", line: 1, cwd: "/", env: map[string]string{}}.read(r, text+"\n# pip", 0)
		if len(r.sets) != 0 || len(r.unread) != 1 {
			t.Errorf("%s: %d sets, unread %+v", name, len(r.sets), r.unread)
		}
	}
	r := &result{}
	script{name: "x", line: 1, cwd: "/", env: map[string]string{}}.read(r, strings.Repeat("( ", 50)+"a=x; pip install $a"+strings.Repeat(")", 50), 0)
	if len(r.sets) != 1 || len(r.unread) != 0 {
		t.Errorf("a script that can be read: %+v", r)
	}
}
