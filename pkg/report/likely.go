package report

import (
	"cmp"
	"regexp"
	"strings"
)

// symptom is what programs print when something is not as a task expects it.
type symptom struct {
	match *regexp.Regexp
	says  string // $1 is what the pattern caught
}

// symptoms, the telling ones first: a grader without its interpreter also
// prints that a command was not found. Each is as the program prints it.
var symptoms = func() (all []symptom) {
	for _, s := range [][2]string{
		{`No interpreter found for (?:Python )?(\d[\w.]*)`, "graders need Python $1 (sifbuild wheelhouse --grader)"}, // uv
		{`(?i)tmux: (?:command )?not found`, "images have no tmux (sifbuild build --require tmux)"},                  // sh, bash
		{`(?i)exec format error`, "programs are for another architecture"},                                           // kernel
		{`version .?(GLIBC_[\d.]+).? not found`, "a program needs a newer C library than the image has ($1)"},        // ld.so
		{`(?i)toomanyrequests|429 Too Many Requests|You have reached your (?:unauthenticated )?pull rate limit`, "rate limit (HTTP 429)"},
		{`No matching distribution found for ([\w.\-\[\]]+)`, "pip finds no $1 (sifbuild wheelhouse)"},                                                // pip
		{`Could not find a version that satisfies the requirement ([\w.\-\[\]]+)`, "pip finds no $1 (sifbuild wheelhouse)"},                           // pip
		{`Because ([\w.\-\[\]]+) was not found in the (?:package registry|cache|provided package locations)`, "uv finds no $1 (sifbuild wheelhouse)"}, // uv
		{`npm (?:ERR!|error) (?:code )?(?:ETARGET|notarget No matching version found for ([\w.@/\-]+))`, "npm finds no version $1"},
		{`npm (?:ERR!|error) (?:404 +'?([\w.@/\-]+)|code E404)`, "npm finds no package $1"},
		{`E: Unable to locate package ([\w.+\-]+)`, "apt finds no $1"},
		{`E: (?:Package '?([\w.+\-]+)'? has no installation candidate)`, "apt finds no $1"},
		{`No space left on device|Disk quota exceeded`, "no space left"},
		{`(?:0o?|mode |-)(?:100)?(?:664|775|666|777)\b.*(?:0o?|expected |!= ?')(?:100)?(?:644|755|600|700)\b|(?:644|755)['"]? (?:!=|==) ['"]?(?:0o?)?(?:664|775)\b|-rw-rw-r--|drwxrwxr-x`, "files are writable by the group (umask 0002)"},
		{`(?:Could not resolve host:? ?|Temporary failure resolving '|Failed to resolve '|getaddrinfo \w+ )([\w.\-]+)`, "it wants the network ($1)"}, // curl, apt, urllib3, node
		{`Temporary failure in name resolution|Name or service not known|Network is unreachable|Could not resolve host`, "it wants the network"},
		{`ModuleNotFoundError: No module named '([\w.]+)'`, "there is no Python module $1"},
		{`IndentationError`, "a Python script is indented wrongly (a heredoc that was taken apart?)"},
		{`(?m)^(?:[\w./\-]+: )?(?:line \d+: |\d+: )?([\w.+\-]+): (?:command )?not found`, "there is no $1"}, // bash; dash: "sh: 1: x: not found"
		{`env: ['‘]?([\w./+\-]+)['’]?: No such file or directory`, "there is no $1"},
		{`Connection refused|ECONNREFUSED`, "a server did not answer (connection refused)"},
		{`Address already in use|EADDRINUSE`, "a port was taken already"},
		{`MemoryError|Cannot allocate memory|ENOMEM|(?m)^Killed$`, "out of memory"},
		{`Read-only file system|EROFS`, "a file system is read-only"},
		{`(?i)(/[\w./+\-]+)['"]?: Permission denied|Permission denied: ['"]?(/[\w./+\-]+)`, "permission denied: $1$2"},
		{`(?i)permission denied`, "permission denied"},
		{`Operation not permitted`, "an operation was not permitted"},
		{`(?i)timed? ?out`, "a time limit"},
	} {
		all = append(all, symptom{regexp.MustCompile(s[0]), s[1]})
	}
	return all
}()

// Likely is the guess at why a trial has not been solved, "" without one.
func Likely(t Trial) string {
	if Kind(t) == "solved" {
		return ""
	}
	if Kind(t) != "fault" {
		return likely(t.Verifier, t.Script)
	}
	return likely(Why(t).Message, t.Verifier, t.Script)
}

// likely is a guess, in a few words, at why a trial went wrong, by what was
// printed: "" without one. It is for notes; nothing rests on it.
func likely(texts ...string) string {
	for _, s := range symptoms {
		for _, text := range texts {
			m := s.match.FindStringSubmatchIndex(text)
			if m == nil {
				continue
			}
			says := string(s.match.ExpandString(nil, s.says, text, m))
			return cmp.Or(strings.TrimSpace(strings.ReplaceAll(says, "()", "")), s.says)
		}
	}
	return ""
}
