package version

import (
	"runtime/debug"
	"testing"
)

func TestOf(t *testing.T) {
	build := func(module string, settings ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{Main: debug.Module{Version: module}}
		for i := 0; i+1 < len(settings); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return info
	}
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for want, info := range map[string]*debug.BuildInfo{
		"devel":                build("(devel)"),
		"v1.2.3":               build("v1.2.3", "vcs.revision", commit),
		"0123456789ab":         build("", "vcs.revision", commit, "vcs.modified", "false"),
		"0123456789ab+changed": build("(devel)", "vcs.revision", commit, "vcs.modified", "true"),
	} {
		if got := of(info); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := of(nil); got != "devel" {
		t.Errorf("%q without build info", got)
	}
}
