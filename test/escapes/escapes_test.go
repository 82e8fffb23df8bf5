package escapes

import (
	"slices"
	"strings"
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// measured are all results of this test process, for docs/escapes.md.
var measured [arms]map[string]wire.Result

// TestEscapes runs the table in every arm.
func TestEscapes(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	abi := landlockABI(t)
	var list []wire.Row
	for _, r := range rows {
		list = append(list, wire.Row{Name: r.name, With: r.with})
	}
	for arm := range arms {
		t.Run(strings.ReplaceAll(armNames[arm], ", ", "-"), func(t *testing.T) {
			for _, a := range []struct {
				arm  int
				form string
			}{{namespace, "namespace"}, {bare, "bare"}, {boxNamespace, "namespace"}, {boxBare, "bare"}} {
				if a.arm != arm {
					continue
				}
				if form := b.form(t, arm); form != a.form {
					t.Fatalf("fence says that it is in the %s form", form)
				}
			}
			results := b.drive(t, arm, list)
			passed := 0
			for _, r := range rows {
				t.Run(r.name, func(t *testing.T) {
					p, err := r.parse()
					if err != nil {
						t.Fatal(err)
					}
					p = b.without(p, arm)
					result, ok := results[r.name]
					if !ok {
						t.Fatal("no result")
					}
					if wrong := p.compare(result, arm, abi); len(wrong) > 0 {
						t.Errorf("%s\n%s", r.what, strings.Join(wrong, "\n"))
						return
					}
					passed++
				})
			}
			t.Logf("%d of %d rows are as the table has them", passed, len(rows))
			measured[arm] = results
		})
	}
	for _, o := range otherwise {
		t.Logf("row %s (%s): %s; %s", o.name, o.what, o.result, o.where)
	}
}

func landlockABI(t *testing.T) int {
	t.Helper()
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		t.Fatal(err)
	}
	return abi
}

// without drops the steps whose fixtures only root can make, or that there are not in a container.
func (b tools) without(p parsed, arm int) parsed {
	p.steps = slices.DeleteFunc(slices.Clone(p.steps), func(s step) bool {
		box := arm >= boxNone
		return s.name == "setuid" && s.kind == denied && strings.HasPrefix(s.note, "it runs") && (box || b.setuid == "") ||
			s.name == "filecaps" && (box || b.filecaps == "") ||
			s.name == "cgroup.procs" && (box || b.cgroup == "")
	})
	return p
}
