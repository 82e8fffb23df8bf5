package step

import "testing"

func TestHollow(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		size, taken int64
		want        bool
	}{
		{gib, 0, true}, {gib - 1, 0, false}, {400 * gib, 12 << 10, true}, {10 * gib, gib, false}, {10 * gib, gib - 1, true}, {gib, gib, false}, {gib, 2 * gib, false},
	} {
		if got := hollow(c.size, c.taken); got != c.want {
			t.Errorf("%d bytes that take %d: %t", c.size, c.taken, got)
		}
	}
}
