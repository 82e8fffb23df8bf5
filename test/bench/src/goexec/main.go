// Command goexec becomes the command it is given and does nothing else: what a
// launcher written in Go costs at the least.
package main

import (
	"os"
	"syscall"
)

func main() {
	if err := syscall.Exec(os.Args[1], os.Args[1:], os.Environ()); err != nil {
		os.Exit(127)
	}
}
