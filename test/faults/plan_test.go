package faults

import (
	"slices"
	"testing"

	"fence/test/faults/inject"
)

// In full every call fails once at least, of a whole scene with every errno, and
// every site of the program with every errno: in a brief scene if it did not before.
func TestPlan(t *testing.T) {
	defer func(was bool) { full = was }(full)
	full = true
	call := func(name string, nth int, site uint64, whole bool) inject.Call {
		return inject.Call{Address: inject.Address{Name: name, Nth: nth}, Site: inject.Site{Hash: site, Whole: whole}}
	}
	var calls []inject.Call
	for i := range 150 {
		calls = append(calls, call("mount", i+1, 1+uint64(i%7), true), call("statx", i+1, 10+uint64(i%50), true), call("futex", i+1, 100, true))
	}
	calls = append(calls, call("openat", 1, 200, false), call("openat", 2, 200, false), call("getpid", 1, 300, true))
	p := &planner{map[inject.Site]bool{}}
	faults := func(sc *scene) (errs map[inject.Address][]int64, sites map[uint64][]int64) {
		errs, sites = map[inject.Address][]int64{}, map[uint64][]int64{}
		list, _, _ := p.plan(sc, calls, 3)
		for _, i := range list {
			errs[i.Address] = append(errs[i.Address], i.Ret)
			if !slices.Contains(sites[i.call.Site.Hash], i.Ret) {
				sites[i.call.Site.Hash] = append(sites[i.call.Site.Hash], i.Ret)
			}
		}
		return errs, sites
	}
	errs, sites := faults(&scene{})
	for _, c := range calls {
		want, tried := 1, errs[c.Address]
		switch {
		case c.Name == "getpid":
			want = 0
		case !c.Site.Whole: // it may be any site
			want = len(errnos)
		case c.Name == "mount":
			want = 2
			if !slices.Contains(tried, 0) {
				t.Errorf("%v is not skipped", c)
			}
		}
		if len(tried) < want {
			t.Errorf("%v: %d faults, want %d", c, len(tried), want)
		}
		if got := sites[c.Site.Hash]; want > 0 && len(got) < len(errnos) {
			t.Errorf("the site of %v: %v", c, got)
		}
	}
	errs, _ = faults(&scene{whole: true})
	for _, c := range calls {
		if got := len(errs[c.Address]); got < len(errnos) && c.Name != "getpid" {
			t.Errorf("a whole scene, %v: %d faults", c, got)
		}
	}
	_, sites = faults(&scene{brief: true})
	if len(sites[1]) > 1+len(errnos) || len(sites[10]) > 0 {
		t.Errorf("a brief scene tries again %v %v", sites[1], sites[10])
	}
	calls = []inject.Call{call("mount", 1, 1, true), call("mount", 2, 9, true), call("mount", 3, 9, true)}
	errs, _ = faults(&scene{brief: true})
	for nth, want := range []int{2, 1 + len(errnos), 2} {
		if got := errs[inject.Address{Name: "mount", Nth: nth + 1}]; len(got) != want {
			t.Errorf("a brief scene, call %d: %v, want %d", nth+1, got, want)
		}
	}
	calls = []inject.Call{call("statx", 1, 10, true), call("statx", 2, 1000, true), call("futex", 1, 1001, true)}
	errs, _ = faults(&scene{brief: true, news: true})
	for i, want := range []int{0, len(errnos), 0} {
		if got := errs[calls[i].Address]; len(got) != want {
			t.Errorf("a brief scene with what is new, %v: %v, want %d", calls[i], got, want)
		}
	}
}
