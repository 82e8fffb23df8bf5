package inject

import "testing"

// A path that has the process's number in it by chance is the same path in the
// next launch, when the number is another.
func TestNumberless(t *testing.T) {
	for path, want := range map[string]string{
		"/proc/3983/fd/7":                     "/proc/PID/fd/7",
		"/proc/3983":                          "/proc/PID",
		"/proc/39831/status":                  "/proc/39831/status",
		"/proc/self/task/3983/ns/net":         "/proc/self/task/TID/ns/net",
		"/dev/shm/.fence-self-test-3983":      "/dev/shm/.fence-self-test-N",
		"/tmp/fence-faults-13983":             "/tmp/fence-faults-13983",
		"/proj/team/checkout/test-3465983891": "/proj/team/checkout/test-3465983891",
		"/proj/team/checkout/test-3983":       "/proj/team/checkout/test-3983",
		"/tmp/3983/x":                         "/tmp/3983/x",
		"3983":                                "3983",
		"pipe:[3983]":                         "pipe",
		"socket:[117]":                        "socket",
		"net:[4026531840]":                    "net",
		"anon_inode:[eventpoll]":              "anon_inode:[eventpoll]",
		"/tmp/pipe:[3983]":                    "/tmp/pipe:[3983]",
		"":                                    "",
	} {
		if got := numberless(path, 3983); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
