package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fence/pkg/build"
	"fence/pkg/check"
	"fence/pkg/harbor"
	"fence/pkg/wheelhouse"
	"fence/test/bed"
	"fence/test/clitest"
)

// Real records of all kinds fit their schemas, are read back with every
// unknown field refused, and come out as they went in.
func TestRecords_Real(t *testing.T) {
	bed.Require(t, "users", "images")
	dir := bed.TempDir(t)
	for name, text := range map[string]string{
		"good/Dockerfile": "FROM busybox\nCOPY Dockerfile /copy\nSHELL [\"/bin/sh\", \"-c\"]\n",
		"bad/Dockerfile":  "FROM busybox\nCOPY nothere /\n", "fails/Dockerfile": "FROM busybox\nRUN exit 1\n",
		"tests/task.toml": "version = \"1.0\"\n", "tests/environment/Dockerfile": "FROM busybox\nCOPY . /\n",
		"tests/environment/t": strings.Repeat("x\n", 100), "tests/tests/t": strings.Repeat("x\n", 100),
	} {
		p := filepath.Join(dir, "tasks", name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(codes []int, args ...string) []byte {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := bed.Command(t, bed.Bin(t, "sifbuild"), args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
		cmd.Env = append(cmd.Env, "TMPDIR="+dir)
		if err := cmd.Run(); !slices.Contains(codes, cmd.ProcessState.ExitCode()) {
			t.Fatalf("sifbuild %q: %v\n%s", args, err, stderr.String())
		}
		return stdout.Bytes()
	}
	tasks := []string{"tasks", "--cache", dir + "/cache", "--base", "busybox=" + bed.Root("busybox"), "--require", "ls"}
	built := run([]int{3}, slices.Concat([]string{"build"}, tasks, []string{"--harbor-names"})...)
	indented, err := os.ReadFile(filepath.Join(dir, "cache", harbor.IndexFile))
	if err != nil {
		t.Fatal(err)
	}
	var index bytes.Buffer
	if err := json.Compact(&index, indented); err != nil {
		t.Fatal(err)
	}
	images, _ := filepath.Glob(dir + "/cache/sif/*.sif")
	if len(images) != 2 {
		t.Fatalf("images: %q", images)
	}
	for _, r := range []struct {
		name  string
		lines []byte
		count int
		into  any
	}{
		{"sifbuild.image", built, 4, &build.Report{}},
		{"sifbuild.image", run([]int{3}, slices.Concat([]string{"build"}, tasks)...), 4, &build.Report{}},
		{"sifbuild.plan", run([]int{3}, slices.Concat([]string{"plan", "--json"}, tasks)...), 4, &planRecord{}},
		{"sifbuild.check", run([]int{1}, "check", "--json", "--require", "nosuch", images[0], images[1]), 2, &check.Report{}},
		{"sifbuild.index", index.Bytes(), 1, &harbor.Index{}},
		{"sifbuild.gone", run([]int{0}, "gc", "--json", "--cache", dir+"/cache", "--unused", "1ns"), 0, &build.Gone{}},
	} {
		lines := slices.Collect(bytes.Lines(r.lines))
		if r.count > 0 && len(lines) != r.count || len(lines) == 0 {
			t.Errorf("%s: %d records, want %d\n%s", r.name, len(lines), r.count, r.lines)
		}
		for _, line := range lines {
			line = bytes.TrimSpace(line)
			if err := clitest.Validate(t, r.name, line); err != nil {
				t.Errorf("%s: %v\n%s", r.name, err, line)
			}
			into := reflect.New(reflect.TypeOf(r.into).Elem()).Interface()
			if err := decode(line, into); err != nil {
				t.Errorf("%s: %v\n%s", r.name, err, line)
				continue
			}
			if bytes.Contains(line, []byte("null")) {
				t.Errorf("%s: a null\n%s", r.name, line)
			}
			var got bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(into); err != nil || strings.TrimSpace(got.String()) != string(line) {
				t.Errorf("%s, read and written again (%v):\n%s\nwas\n%s", r.name, err, got.String(), line)
			}
			unknown := bytes.Replace(line, []byte(`{`), []byte(`{"surprise": 1, `), 1)
			if decode(unknown, into) == nil {
				t.Errorf("%s: an unknown field is taken", r.name)
			}
			if clitest.Validate(t, r.name, unknown) == nil {
				t.Errorf("%s: the schema takes an unknown field", r.name)
			}
		}
	}
}

func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func TestSchemas_NameEveryField(t *testing.T) {
	for name, v := range map[string]any{"sifbuild.image": build.Report{}, "sifbuild.plan": planRecord{}, "sifbuild.check": check.Report{}, "sifbuild.gone": build.Gone{}, "sifbuild.index": harbor.Index{}, "sifbuild.wheelhouse": wheelhouse.Record{}} {
		clitest.NamesEveryField(t, name, reflect.TypeOf(v))
	}
}
