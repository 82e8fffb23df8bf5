// Static is the only program of the `static` test image, whose root has no C library and no shell.
// It says who it is and what it sees, so that a test knows the command really ran in there.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	fmt.Printf("hello from static, uid %d gid %d\n", os.Getuid(), os.Getgid())
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "ls":
		for _, dir := range os.Args[2:] {
			entries, err := os.ReadDir(dir)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			for _, e := range entries {
				fmt.Println(dir, e.Name())
			}
		}
	case "cat":
		for _, name := range os.Args[2:] {
			data, err := os.ReadFile(name)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Stdout.Write(data)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: static [env | ls DIR... | cat FILE...]")
		os.Exit(2)
	}
}
