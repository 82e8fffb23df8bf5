package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// symptom is what programs print when something is not as a task expects it.
type symptom struct {
	has   []string // one of which is in what match matches, in lower case: looked for first, for that is quick
	match *regexp.Regexp
	says  string // $1 is what the pattern caught
}

// symptoms, the telling ones first: a grader without its interpreter also
// prints that a command was not found. Each is as the program prints it.
var symptoms = func() (all []symptom) {
	for _, s := range [][3]string{
		{"no interpreter found", `No interpreter found for (?:Python )?(\d[\w.]*)`, "graders need Python $1 (sifbuild wheelhouse --grader)"},                                                        // uv
		{"tmux: ", `(?i)tmux: (?:command )?not found`, "images have no tmux (sifbuild build --require tmux)"},                                                                                       // sh, bash
		{"/test.sh: |/solve.sh: ", `/(tests/test|solution/solve)\.sh: (?:not found|cannot execute: required file not found|.*: bad interpreter)`, "images lack what the first line of $1.sh names"}, // sh, bash
		{"/test.sh: ", `/tests/test\.sh: (?:line )?\d+: (curl|uvx?): (?:command )?not found`, "graders need $1 (sifbuild wheelhouse --grader)"},                                                     // bash, sh
		{"exec format error", `(?i)exec format error`, "programs are for another architecture"},                                                                                                     // kernel
		{"glibc_", `version .?(GLIBC_[\d.]+).? not found`, "a program needs a newer C library than the image has ($1)"},                                                                             // ld.so
		{"toomanyrequests|429 too many|pull rate limit", `(?i)toomanyrequests|429 Too Many Requests|You have reached your (?:unauthenticated )?pull rate limit`, "rate limit (HTTP 429)"},
		{"no matching distribution", `No matching distribution found for ([\w.\-\[\]]+)`, "pip finds no $1 (sifbuild wheelhouse)"},                                            // pip
		{"could not find a version", `Could not find a version that satisfies the requirement ([\w.\-\[\]]+)`, "pip finds no $1 (sifbuild wheelhouse)"},                       // pip
		{"was not found in the", `Because ([\w.\-\[\]]+) was not found in the (?:package registry|cache|provided package locations)`, "uv finds no $1 (sifbuild wheelhouse)"}, // uv
		{"npm err", `npm (?:ERR!|error) (?:code )?(?:ETARGET|notarget No matching version found for ([\w.@/\-]+))`, "npm finds no version $1"},
		{"npm err", `npm (?:ERR!|error) (?:404 +'?([\w.@/\-]+)|code E404)`, "npm finds no package $1"},
		{"e: unable to locate", `E: Unable to locate package ([\w.+\-]+)`, "apt finds no $1"},
		{"no installation candidate", `E: (?:Package '?([\w.+\-]+)'? has no installation candidate)`, "apt finds no $1"},
		{"no space left|quota exceeded", `No space left on device|Disk quota exceeded`, "no space left"},
		{"664|775|666|777|rw-rw-r--|rwxrwxr-x", `(?:0o?|mode |-)(?:100)?(?:664|775|666|777)\b.*(?:0o?|expected |!= ?')(?:100)?(?:644|755|600|700)\b|(?:644|755)['"]? (?:!=|==) ['"]?(?:0o?)?(?:664|775)\b|-rw-rw-r--|drwxrwxr-x`, "files are writable by the group (umask 0002)"},
		{"could not resolve|temporary failure resolving|failed to resolve|getaddrinfo", `(?:Could not resolve host:? ?|Temporary failure resolving '|Failed to resolve '|getaddrinfo \w+ )([\w.\-]+)`, "it wants the network ($1)"}, // curl, apt, urllib3, node
		{"temporary failure in name|name or service not known|network is unreachable|could not resolve", `Temporary failure in name resolution|Name or service not known|Network is unreachable|Could not resolve host`, "it wants the network"},
		{"modulenotfounderror", `ModuleNotFoundError: No module named '([\w.]+)'`, "there is no Python module $1"},
		{"indentationerror", `IndentationError`, "a Python script is indented wrongly (a heredoc that was taken apart?)"},
		{"not found", `(?m)^(?:[\w./\-]+: )?(?:line \d+: |\d+: )?([\w.+\-]+): (?:command )?not found`, "there is no $1"}, // bash; dash: "sh: 1: x: not found"
		{"env: ", `env: ['‘]?([\w./+\-]+)['’]?: No such file or directory`, "there is no $1"},
		{"connection refused|econnrefused", `Connection refused|ECONNREFUSED`, "a server did not answer (connection refused)"},
		{"address already in use|eaddrinuse", `Address already in use|EADDRINUSE`, "a port was taken already"},
		{"memoryerror|cannot allocate memory|enomem|killed", `MemoryError|Cannot allocate memory|ENOMEM|(?m)^Killed$`, "out of memory"},
		{"read-only file system|erofs", `Read-only file system|EROFS`, "a file system is read-only"},
		{"permission denied", `(?i)(/[\w./+\-]+)['"]?: Permission denied|Permission denied: ['"]?(/[\w./+\-]+)`, "permission denied: $1$2"},
		{"permission denied", `(?i)permission denied`, "permission denied"},
		{"operation not permitted", `Operation not permitted`, "an operation was not permitted"},
		{"timed out|timeouterror|timeoutexpired", `(?i)timed out|TimeoutError|TimeoutExpired`, "a time limit"},
	} {
		all = append(all, symptom{strings.Split(s[0], "|"), regexp.MustCompile(s[1]), s[2]})
	}
	return all
}()

// Likely is the guess at why a trial has not been solved, "" without one. A
// no-op has not, and that is as it must be.
func Likely(t Trial) string {
	switch k := Kind(t); {
	case k == "solved" || t.AgentInfo.Name == nop && k == "failed":
		return ""
	case k != "fault" && unreadable(t):
		return "no reply of the model could be read"
	case k != "fault":
		says := likely(t.Verifier, t.Script)
		if c := t.Agent.ExitCode; says == "" && t.AgentInfo.Name == oracle && c != nil && *c != 0 {
			return fmt.Sprintf("the solution ended with %d", *c)
		}
		return says
	default:
		return likely(Why(t).Message, t.Verifier, t.Script)
	}
}

// unreadable says that a model never kept to the protocol: nothing was done.
func unreadable(t Trial) bool {
	r := RepliesOf(t)
	return t.Agent.Turns > 0 && r.Unread+r.Truncated == t.Agent.Turns
}

// likely is a guess, in a few words, at why a trial went wrong, by what was
// printed: "" without one. It is for notes; nothing rests on it.
// The first text that has any symptom is believed: what failed stands in front
// of what was done before.
func likely(texts ...string) string {
	for _, text := range texts {
		lower := strings.ToLower(text)
		for _, s := range symptoms {
			if !slices.ContainsFunc(s.has, func(word string) bool { return strings.Contains(lower, word) }) {
				continue
			}
			if m := s.match.FindStringSubmatchIndex(text); m != nil {
				says := string(s.match.ExpandString(nil, s.says, text, m))
				return strings.TrimSpace(strings.ReplaceAll(says, "()", ""))
			}
		}
	}
	return ""
}
