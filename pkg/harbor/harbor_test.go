package harbor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"fence/pkg/task"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The digests were computed by Python:
//
//	h = sha256()
//	for p in sorted(q for q in env.rglob("*") if q.is_file()):
//	    rel, data = p.relative_to(env).as_posix().encode(), p.read_bytes()
//	    h.update(len(rel).to_bytes(4, "big") + rel + len(data).to_bytes(4, "big") + data)
func TestName(t *testing.T) {
	env := filepath.Join(t.TempDir(), "a-task", "environment")
	write(t, env+"/Dockerfile", "FROM busybox\nCOPY . /x\n")
	write(t, env+"/a/b", "below")
	write(t, env+"/a-b", "after a/b, as Python sorts paths")
	write(t, env+"/.hidden", "")
	for name, target := range map[string]string{"link": "a/b", "dangling": "nowhere"} {
		if err := os.Symlink(target, env+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Name(task.Task{Name: "a-task", Dockerfile: env + "/Dockerfile", Context: env})
	if err != nil {
		t.Fatal(err)
	}
	const dockerfile, environment = "ac1c3ae8b2bde3d93eaedc7ce20c146e7efa11b7821e9091b7fb6577763dea5a", "be21c403827a914c8fc46dd682bb2a8c3847bf4a19743aa0fbfe9ff2be3565c8"
	want := Named{Task: "a-task", Dockerfile: dockerfile, Environment: environment, Files: []string{
		"build_a-task-" + environment[:12] + ".sif", "build_a-task-" + dockerfile[:12] + ".sif",
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	got, err = Name(task.Task{Name: "prebuilt", DockerImage: "busybox"})
	if want := (Named{Task: "prebuilt", Files: []string{"prebuilt.sif"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := Name(task.Task{Name: "gone", Dockerfile: env + "/gone", Context: env}); err == nil || !strings.Contains(err.Error(), env+"/gone") {
		t.Errorf("a Dockerfile that is gone: %v", err)
	}
}

func TestShared(t *testing.T) {
	named := []Named{{Files: []string{"x", "same"}}, {Files: []string{"y", "same"}}, {Files: []string{"z"}}, {Files: []string{"z"}}}
	got := Shared(named, []string{"1", "2", "3", "3"})
	if want := map[string]bool{"same": true}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// cache is a cache with the images of these keys.
func cache(t *testing.T, keys ...string) string {
	dir := t.TempDir()
	for _, key := range keys {
		write(t, filepath.Join(dir, "sif", key+".sif"), key)
	}
	return dir
}

func content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

func TestLink(t *testing.T) {
	dir := cache(t, "1", "2")
	name := filepath.Join(dir, "name.sif")
	for _, key := range []string{"1", "1", "2"} {
		if err := Link(dir, "name.sif", filepath.Join(dir, "sif", key+".sif")); err != nil {
			t.Fatal(err)
		}
		if got := content(t, name); got != key {
			t.Errorf("the name leads to %s, want %s", got, key)
		}
	}
	moved := dir + ".moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if got := content(t, filepath.Join(moved, "name.sif")); got != "2" {
		t.Errorf("of a cache that was moved, the name leads to %q", got)
	}
	write(t, filepath.Join(moved, "own.sif"), "somebody's")
	if err := Link(moved, "own.sif", filepath.Join(moved, "sif", "1.sif")); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("over somebody's image: %v", err)
	}
	if err := Unlink(moved, "own.sif"); err != nil || content(t, filepath.Join(moved, "own.sif")) != "somebody's" {
		t.Errorf("somebody's image was taken away: %v", err)
	}
	if err := Unlink(moved, "name.sif"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(moved, "name.sif")); err == nil {
		t.Error("the name is still there")
	}
	if left, _ := filepath.Glob(moved + "/.*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func tasks(x Index) (all []string) {
	for _, e := range x.Images {
		all = append(all, e.Task+" "+e.Key)
	}
	return all
}

func TestMerge(t *testing.T) {
	ctx := context.Background()
	dir := cache(t, "1", "2")
	entry := func(name, environment, key string) Entry {
		return Entry{Task: name, Environment: environment, Key: key, Image: "sif/" + key + ".sif", Files: []string{}}
	}
	for _, c := range []struct {
		add  []Entry
		want []string
	}{
		{nil, nil},
		{[]Entry{entry("b", "x", "1"), entry("a", "x", "1")}, []string{"a 1", "b 1"}},
		{[]Entry{entry("a", "x", "2")}, []string{"a 2", "b 1"}},        // made anew
		{[]Entry{entry("a", "y", "1")}, []string{"a 2", "a 1", "b 1"}}, // another content
		{[]Entry{entry("c", "x", "3")}, []string{"a 2", "a 1", "b 1"}}, // has no image
		{[]Entry{entry("a", "x", "2"), entry("b", "x", "1")}, []string{"a 2", "a 1", "b 1"}},
	} {
		if err := Merge(ctx, dir, c.add); err != nil {
			t.Fatal(err)
		}
		x, err := ReadIndex(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := tasks(x); !slices.Equal(got, c.want) {
			t.Errorf("after %v: %v, want %v", c.add, got, c.want)
		}
	}
}

func TestMerge_Together(t *testing.T) {
	dir := cache(t, "1")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			e := Entry{Task: fmt.Sprint(i), Key: "1", Image: "sif/1.sif"}
			if err := Merge(context.Background(), dir, []Entry{e}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if x, err := ReadIndex(dir); err != nil || len(x.Images) != 4 {
		t.Errorf("%v, %v", tasks(x), err)
	}
}

func TestMerge_Damaged(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema":"other/v1"}`} {
		dir := cache(t, "1")
		write(t, filepath.Join(dir, IndexFile), text)
		err := Merge(context.Background(), dir, []Entry{{Task: "a", Key: "1", Image: "sif/1.sif"}})
		if err == nil || !strings.Contains(err.Error(), IndexFile) {
			t.Errorf("%q: %v", text, err)
		}
		if got := content(t, filepath.Join(dir, IndexFile)); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestSweep(t *testing.T) {
	dir := cache(t, "1", "2")
	for _, key := range []string{"1", "2"} {
		if err := Link(dir, key+".sif", filepath.Join(dir, "sif", key+".sif")); err != nil {
			t.Fatal(err)
		}
		if err := Merge(context.Background(), dir, []Entry{{Task: key, Key: key, Image: "sif/" + key + ".sif"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, "mine")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "sif", "1.sif")); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"2.sif", "index.json", "locks", "mine", "sif"}; !slices.Equal(names, want) {
		t.Errorf("left: %v, want %v", names, want)
	}
	if x, err := ReadIndex(dir); err != nil || !slices.Equal(tasks(x), []string{"2 2"}) {
		t.Errorf("%v, %v", tasks(x), err)
	}
}
