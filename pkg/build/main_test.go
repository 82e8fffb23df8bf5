package build

import (
	"os"
	"testing"

	"fence/pkg/step"
)

func TestMain(m *testing.M) {
	step.Main()
	os.Exit(m.Run())
}
