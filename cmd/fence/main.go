// Command fence applies Landlock and seccomp, and namespaces where the node
// allows them, to itself, and then becomes the command it was given.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"fence/pkg/cli"
	"fence/pkg/relay"
)

// The main goroutine stays on the main thread, which is the one that /proc/self
// speaks of and that becomes the command.
func init() { runtime.LockOSThread() }

func main() { os.Exit(run(os.Args)) }

// run starts a command if the first argument is a flag, "fence [flags] -- cmd",
// and a subcommand otherwise: "fence -- env" runs env(1).
func run(args []string) int {
	args = cli.Help(args)
	switch {
	case len(args) > 2 && args[1] == "--":
		// No flags: setting up the parser for them would be a tenth of the
		// whole start.
		return cli.Report(os.Stderr, "fence", start(options{form: "auto", statusFD: -1}, args[2:]))
	case len(args) > 1 && strings.HasPrefix(args[1], "relay"):
		return cli.Report(os.Stderr, "fence", relay.Main(args[1:]))
	case len(args) > 1 && (args[1] == "leader" || args[1] == "inside"):
		return cli.Report(os.Stderr, "fence", inSession(args[1:]))
	case len(args) > 1 && !strings.HasPrefix(args[1], "-"):
		code := cli.Main(commands(), args)
		if args[1] == "env" && code != 0 {
			fmt.Println("false") // for eval, which is content with nothing
		}
		return code
	}
	return cli.Main(launcher(), args)
}
