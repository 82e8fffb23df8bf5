package escapes

import (
	"testing"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// TestEscapes_User runs the table again as a user who is pretended: that opens
// nothing: the outcomes are the same.
func TestEscapes_User(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	abi := landlockABI(t)
	var list []wire.Row
	for _, r := range rows {
		list = append(list, wire.Row{Name: r.name, With: r.with})
	}
	b.run, b.more = "user", []string{"--user=1000:1000"}
	for _, arm := range []int{namespace, boxNamespace} {
		b.hold(t, b.drive(t, arm, list), arm, abi, nil, "user")
	}
}
