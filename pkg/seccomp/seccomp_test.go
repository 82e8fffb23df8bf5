package seccomp

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files and the programs anew")

// standardSpecs are the specs whose programs are in the binary.
func standardSpecs() []Spec {
	var specs []Spec
	for _, arch := range []string{"amd64", "arm64"} {
		for _, net := range []Net{NetNone, NetHost} {
			for _, killAll := range []bool{false, true} {
				for _, sysV := range []bool{false, true} {
					specs = append(specs, Spec{Arch: arch, Net: net, DenyKillAll: killAll, DenySysV: sysV})
				}
			}
		}
	}
	return specs
}

// The programs in the binary are what Compile makes of today's table.
func TestEmbedded(t *testing.T) {
	for _, spec := range standardSpecs() {
		want, err := Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(filepath.Join("filters", standardName(spec)), want, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := filters.ReadFile("filters/" + standardName(spec)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what Compile makes (%v): go generate ./pkg/seccomp", standardName(spec), err)
		}
	}
}
