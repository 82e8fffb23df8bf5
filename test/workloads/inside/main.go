// Inside is what the tests of workloads put into the container.
//
//	inside run ARM NAME...           runs workloads one way and prints one JSON result for each
//	inside --less RIGHT -- CMD...    becomes CMD under the policy strict less one right
//
// The second form begins with a flag as fence's own command line does, for the code that makes the
// user namespace looks at it.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"fence/pkg/sandbox"
)

// The thread that is restricted is the one that becomes the command.
func init() { runtime.LockOSThread() }

func main() {
	err := errors.New("usage: inside run ARM NAME... | inside --less RIGHT -- CMD...")
	switch args := os.Args[1:]; {
	case len(args) >= 2 && args[0] == "run":
		err = run(args[1], args[2:], os.Stdout)
	case len(args) >= 4 && args[0] == "--less" && args[2] == "--":
		err = less(args[1], args[3:])
	}
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "inside: %v\n", err)
	var missing *sandbox.NotFoundError
	switch {
	case errors.As(err, &missing):
		os.Exit(127)
	case errors.Is(err, os.ErrPermission):
		os.Exit(126)
	}
	os.Exit(125)
}
