package tree

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var accounts = []string{
	"real/passwd=root:x:0:0:root:/root:/bin/sh\nbob:x:1000:1001:Bob:/home/bob:/bin/sh\nbob2:x:1000:5::/other:\nlost:x:7:7:::\n",
	"etc/passwd->/real/passwd",
	"etc/group=root:x:0:\ndocker:x:999:bob\nbobg:x:1001:\n#c:x:1:bob\nmany:x:50:root,bob\n",
}

func growAccounts(t testing.TB) string {
	root := t.TempDir()
	for _, l := range accounts {
		grow(t, root, strings.ReplaceAll(l, " ", "_"))
	}
	return root
}

func TestResolveOwner(t *testing.T) {
	root := growAccounts(t)
	for spec, want := range map[string]string{
		"bob":          "1000:1001 true",
		"bob:":         "1000:1001 true",
		"bob:docker":   "1000:999 true",
		"bob:77":       "1000:77 true",
		"12":           "12:12 true",
		"12:34":        "12:34 true",
		"12:bobg":      "12:1001 true",
		":docker":      "0:999 true",
		"root":         "0:0 true",
		"root:root":    "0:0 true",
		"nosuch":       "0:0 false",
		"bob:nosuch":   "1000:1001 false",
		"nosuch:bobg":  "0:1001 false",
		"-1":           "0:0 false",
		"4294967296:1": "0:1 false",
	} {
		o, ok, err := ResolveOwner(root, spec)
		must(t, err)
		if got := fmt.Sprint(o, " ", ok); got != want {
			t.Errorf("%q: got %s, want %s", spec, got, want)
		}
	}
	bare := t.TempDir()
	if o, ok, err := ResolveOwner(bare, "5:docker"); err == nil {
		t.Errorf("in an empty root folder: %v %v", o, ok)
	}
	if o, ok, err := ResolveOwner(bare, "5"); o != (Owner{5, 5}) || !ok || err != nil {
		t.Errorf("a number in an empty root folder: %v %v %v", o, ok, err)
	}
	grow(t, bare, "f=f")
	if o, ok, err := ResolveOwner(bare, "bob:docker"); o != (Owner{}) || ok || err != nil {
		t.Errorf("without files: %v %v %v", o, ok, err)
	}
}

func TestResolveUser(t *testing.T) {
	root := growAccounts(t)
	for spec, want := range map[string]string{
		"":           "{0 0 /root [50]}",
		"root":       "{0 0 /root [50]}",
		"0:0":        "{0 0 /root []}",
		"bob":        "{1000 1001 /home/bob [999 50]}",
		"1000":       "{1000 1001 /home/bob [999 50]}",
		"bob2":       "{1000 5 /home/bob []}",
		"bob:docker": "{1000 999 /home/bob []}",
		"4242":       "{4242 0 / []}",
		"4242:77":    "{4242 77 / []}",
		":docker":    "{0 999 /root []}",
		"lost":       "{7 7  []}",
	} {
		u, err := ResolveUser(root, spec)
		must(t, err)
		if got := fmt.Sprint(u); got != want {
			t.Errorf("%q: got %s, want %s", spec, got, want)
		}
	}
	for _, spec := range []string{"nosuch", "bob:nosuch", "99999999999", "nosuch:docker"} {
		if u, err := ResolveUser(root, spec); err == nil {
			t.Errorf("%q: got %v", spec, u)
		}
	}
	if u, err := ResolveUser(t.TempDir(), ""); err != nil || fmt.Sprint(u) != "{0 0 / []}" {
		t.Errorf("without files: %v %v", u, err)
	}
}

func TestOwners(t *testing.T) {
	root := t.TempDir()
	grow(t, root, "d/f=f", "d/l->f", "d/p|", "gone/", "e/f=f")
	must(t, SetOwner(root, Owner{1, 1}))
	must(t, SetOwner(filepath.Join(root, "d/f"), Owner{5, 6}))
	must(t, SetOwner(filepath.Join(root, "e"), Owner{7, 8}))
	must(t, SetOwner(filepath.Join(root, "e"), Owner{}))
	must(t, SetOwner(filepath.Join(root, "e"), Owner{})) // no note to take away
	for _, p := range []string{"d/l", "d/p"} {
		if err := SetOwner(filepath.Join(root, p), Owner{1, 1}); err == nil {
			t.Errorf("%s took a note", p)
		}
	}
	got, err := Owners(root, []Special{
		{Path: "d/l", Owner: Owner{1, 2}}, {Path: "d/p", Owner: Owner{3, 4}}, {Path: "d/n", Owner: Owner{5, 5}, Device: "b"},
		{Path: "e/f", Owner: Owner{9, 9}},              // a file's owner is noted at the file
		{Path: "d/gone", Owner: Owner{9, 9}},           // not there
		{Path: "e/f", Device: "c", Owner: Owner{9, 9}}, // something else is there
		{Path: "no/n", Device: "c", Owner: Owner{9, 9}},
	})
	must(t, err)
	want := []PathOwner{{".", Owner{1, 1}}, {"d/f", Owner{5, 6}}, {"d/l", Owner{1, 2}}, {"d/n", Owner{5, 5}}, {"d/p", Owner{3, 4}}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseOwner(t *testing.T) {
	for s, ok := range map[string]bool{"0:0": true, "1000:4294967294": true, "": false, "1": false, "1:": false, "-1:0": false, "1:2:3": false, "a:b": false, "+1:1": false} {
		o, err := ParseOwner(s)
		if (err == nil) != ok || ok && o.String() != s {
			t.Errorf("%q: %v, %v", s, o, err)
		}
	}
}
