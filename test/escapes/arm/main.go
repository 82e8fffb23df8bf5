// Command arm runs the attempts of the table (package escapes) in one arm: as an ordinary user,
// unfenced itself, on a node or in a container.
//
//	arm drive <SPEC >RESULTS       run rows, each against a victim of its own
//	arm landlock -write DIR -except DIR -- COMMAND...
//
// The second is the arm "Landlock only": go-landlock with every right that this kernel knows,
// reading everywhere but in one folder, writing in one.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: arm drive|landlock ...")
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "drive":
		err = drive(os.Stdin, os.Stdout)
	case "landlock":
		err = onlyLandlock(os.Args[2:])
	default:
		err = fmt.Errorf("arm: no subcommand %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "arm:", err)
		os.Exit(125)
	}
}
