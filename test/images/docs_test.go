package images

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/sifbuild.md lists the cases in which sifbuild differs, and no others.
func TestDocs_Differences(t *testing.T) {
	cases, err := Load("cases")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, c := range cases {
		if c.Differs != "" {
			want = append(want, c.Name)
		}
	}
	page, err := os.ReadFile("../../docs/sifbuild.md")
	if err != nil {
		t.Fatal(err)
	}
	_, differences, ok := strings.Cut(string(page), "\n## Differences from docker build\n")
	if !ok {
		t.Fatal("docs/sifbuild.md has no differences")
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9-]+)` \\|").FindAllStringSubmatch(differences, -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("docs/sifbuild.md lists %q\nthe cases that differ are %q", got, want)
	}
}
