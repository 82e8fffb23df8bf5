package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// onlyLandlock restricts itself as far as go-landlock goes on this kernel and becomes the command.
func onlyLandlock(args []string) error {
	flags := flag.NewFlagSet("landlock", flag.ContinueOnError)
	write := flags.String("write", "", "the folder that may be changed")
	except := flags.String("except", "", "the folder that may not be read")
	if err := flags.Parse(args); err != nil {
		return err
	}
	argv := flags.Args()
	if len(argv) == 0 || *write == "" || *except == "" {
		return errors.New("usage: arm landlock -write DIR -except DIR -- COMMAND...")
	}
	config, err := everything()
	if err != nil {
		return err
	}
	// No IOCTL_DEV and no RESOLVE_UNIX right is granted anywhere: as much is denied as can be.
	rules := []landlock.Rule{landlock.RWDirs(*write).WithRefer()}
	for _, p := range around("/", *except) {
		if info, err := os.Stat(p); err != nil {
			continue // a dangling link
		} else if info.IsDir() {
			rules = append(rules, landlock.RODirs(p))
		} else {
			rules = append(rules, landlock.ROFiles(p))
		}
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	fd, restrict, err := config.NewRulesetFD(rules...)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), uintptr(restrict), 0); errno != 0 {
		return os.NewSyscallError("landlock_restrict_self", errno)
	}
	unix.Close(fd)
	return unix.Exec(argv[0], argv, os.Environ())
}

// everything is the configuration of go-landlock that handles all that this kernel knows.
func everything() (landlock.Config, error) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return landlock.Config{}, err
	}
	versions := []landlock.Config{landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7,
		landlock.V8, landlock.V9, landlock.V10, landlock.V11}
	if abi < 1 {
		return landlock.Config{}, fmt.Errorf("Landlock ABI %d", abi)
	}
	return versions[min(abi, len(versions))-1], nil
}

// around is all that lies below dir but not below except: Landlock has no "but not below".
func around(dir, except string) []string {
	var out []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		switch {
		case p == except:
		case strings.HasPrefix(except, p+"/"):
			out = append(out, around(p, except)...)
		default:
			out = append(out, p)
		}
	}
	return out
}
