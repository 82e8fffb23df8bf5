package smoke

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"fence/pkg/sif"
)

// mark begins each line of the script's own, among what the image's shell may
// print besides.
const mark = "sifbuild-smoke "

// shellsOwn are variables that shells set or unset for themselves, whatever
// they inherit (dash(1), bash(1), busybox ash): what the image says of them
// cannot be seen from a shell.
var shellsOwn = []string{"IFS", "OPTIND", "OPTARG", "OPTERR", "PWD", "OLDPWD", "PPID", "_", "SHLVL", "LINENO", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS",
	"EPOCHREALTIME", "PS1", "PS2", "PS3", "PS4", "MAIL", "MAILPATH", "MAILCHECK", "ENV", "FUNCNAME", "GROUPS", "DIRSTACK", "HISTCMD", "PIPESTATUS", "SHELLOPTS",
	"BASHOPTS", "HOSTNAME", "HOSTTYPE", "MACHTYPE", "OSTYPE", "key", "e", "__script__"}

// ours are variables that Apptainer or the fence gives every command, because
// without them it could not be what it is.
var ours = []string{"APPTAINER_", "SINGULARITY_", "FENCE_", "BASH"}

// seen says whether a script can compare the variable name.
func seen(name string) bool {
	return !slices.Contains(shellsOwn, name) && !slices.ContainsFunc(ours, func(p string) bool { return strings.HasPrefix(name, p) })
}

// script is what the image's own shell is asked, in POSIX's language: it
// prints names of what is not as it must be, and no values.
func script(img Image) string {
	var b strings.Builder
	fmt.Fprintf(&b, "echo %q\"$(umask)\"\n", mark+"umask ")
	vars, _ := sif.Environment(img.Config)
	last := map[string]string{}
	for _, v := range vars {
		last[v[0]] = v[1]
	}
	for _, v := range vars {
		name, value := v[0], v[1]
		if last[name] != value || !seen(name) {
			continue
		}
		fmt.Fprintf(&b, "[ \"${%s+set}\" = set ] && [ \"x$%[1]s\" = %s ] || echo %q\n", name, quote("x"+value), mark+"env "+name)
	}
	if dir := img.Config.WorkingDir; dir != "" {
		fmt.Fprintf(&b, "[ -d %s ] || echo %q\n", quote(path.Clean("/"+dir)), mark+"workdir")
	}
	for i, name := range img.Require {
		fmt.Fprintf(&b, "command -v %s >/dev/null 2>&1 || echo \"%scommand %d\"\n", quote(name), mark, i)
	}
	fmt.Fprintf(&b, "echo %q\n", mark+"end")
	return b.String()
}

// quote is s as one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'" }

// private are folders that every container has anew: what an image keeps in
// them is not seen when it runs.
var private = []string{"/tmp", "/var/tmp", "/dev", "/proc", "/sys"}

// judge reads what the script printed. dropped are variables that the fence
// keeps from commands because they look like credentials; ended says that the
// script came to its end.
func judge(img Image, out string, dropped []string) (bad, warnings []string, ended bool) {
	var env []string
	for line := range strings.Lines(out) {
		text, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), mark)
		if !ok {
			continue
		}
		what, value, _ := strings.Cut(text, " ")
		switch what {
		case "umask":
			if n, err := strconv.ParseUint(value, 8, 32); err != nil || n != 0o22 {
				bad = append(bad, fmt.Sprintf("its umask is %q, not 022", value))
			}
		case "env":
			if !slices.Contains(dropped, value) {
				env = append(env, value)
			}
		case "workdir":
			text := fmt.Sprintf("its WORKDIR %s is not there when it runs", img.Config.WorkingDir)
			if dir := path.Clean("/" + img.Config.WorkingDir); slices.ContainsFunc(private, func(p string) bool { return strings.HasPrefix(dir+"/", p+"/") }) {
				warnings = append(warnings, text+": each container has its own "+dir[:strings.Index(dir[1:]+"/", "/")+1])
			} else {
				bad = append(bad, text)
			}
		case "command":
			if i, err := strconv.Atoi(value); err == nil && i < len(img.Require) {
				bad = append(bad, fmt.Sprintf("its shell finds no command %s", img.Require[i]))
			}
		case "end":
			ended = true
		}
	}
	if len(env) > 0 {
		bad = append(bad, "its commands do not get the variables of its configuration: "+strings.Join(env, ", "))
	}
	if len(dropped) > 0 {
		warnings = append(warnings, "its variables "+strings.Join(dropped, ", ")+" look like credentials: the fence keeps them from every command")
	}
	return bad, warnings, ended
}
