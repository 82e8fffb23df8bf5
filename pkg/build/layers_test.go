package build

import (
	"errors"
	"testing"

	"fence/pkg/tree"
)

// A step that failed in a way that may pass is not tried again at once by the
// next build that has it, and one that will fail again is: it says so itself.
func TestLayers_AFailingStepRests(t *testing.T) {
	s, err := newScratch(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, c := range []struct {
		name  string
		err   error
		rests bool
	}{
		{"a mirror", &StatusError{Status: 1, Said: "Connection timed out"}, true},
		{"silence", &IdleError{}, true},
		{"a compiler", &StatusError{Status: 1, Said: "syntax error"}, false},
		{"ours", errors.New("x"), false},
	} {
		l := &layers{scratch: s, calls: map[string]*call{}, failing: map[string]failing{}}
		ran := 0
		get := func() error {
			_, _, err := l.get(t.Context(), "key", nil, false, func(string) ([]tree.Special, error) { ran++; return nil, c.err })
			return err
		}
		first, second := get(), get()
		if !errors.Is(first, c.err) || !errors.Is(second, c.err) {
			t.Errorf("%s: %v, then %v", c.name, first, second)
		}
		if (ran == 1) != c.rests || (l.rests("key") > 0) != c.rests || l.rests("other") != 0 {
			t.Errorf("%s: run %d times, rests %v", c.name, ran, l.rests("key"))
		}
		// And when it has rested.
		f := l.failing["key"]
		f.until = f.until.Add(-2 * patience("network", 1))
		l.failing["key"] = f
		if before := ran; get() == nil || ran != before+1 {
			t.Errorf("%s: not tried again", c.name)
		}
	}
}
