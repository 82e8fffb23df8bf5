// Package version says which build of the tools this is.
package version

import "runtime/debug"

// String is the module's version, else the commit it was built from, as far
// as the build says either.
func String() string {
	info, _ := debug.ReadBuildInfo()
	return of(info)
}

func of(info *debug.BuildInfo) string {
	if info == nil {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	commit, changed := "devel", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && s.Value != "":
			commit = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changed"
		}
	}
	return commit + changed
}
