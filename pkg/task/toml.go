package task

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"fence/pkg/internal/suggest"
	"fence/pkg/internal/tomldoc"
)

// settingsLimit is how long a task.toml may be, in bytes.
const settingsLimit = 1 << 20

// known are the keys of task.toml up to schema 1.4, by table ("" is the top).
// Tables that are not here hold whatever a task wants.
var known = map[string][]string{
	"": {"schema_version", "version", "source", "artifacts", "multi_step_reward_strategy", "task", "metadata", "agent", "verifier",
		"solution", "environment", "steps"},
	"task":                 {"name", "description", "authors", "keywords"},
	"agent":                {"timeout_sec", "user", "network_mode", "allowed_hosts"},
	"verifier":             {"timeout_sec", "env", "user", "environment_mode", "environment", "collect", "network_mode", "allowed_hosts"},
	"solution":             {"env"},
	"environment":          environmentKeys,
	"verifier.environment": environmentKeys,
}

var environmentKeys = []string{"build_timeout_sec", "docker_image", "image", "os", "cpus", "memory_mb", "storage_mb", "gpus", "gpu_types", "tpu",
	"allow_internet", "network_mode", "allowed_hosts", "mcp_servers", "env", "skills_dir", "workdir", "healthcheck", "memory", "storage"}

// settings reads task.toml, or says why it cannot be read. Unknown keys are
// warnings: Harbor ignores them, and schemas grow.
func (t *Task) settings(data []byte) (reason string) {
	if len(data) > settingsLimit {
		return fmt.Sprintf("task.toml is longer than %d bytes", settingsLimit)
	}
	var root map[string]any
	if err := toml.Unmarshal(data, &root); err != nil {
		where := "task.toml"
		if at, ok := err.(*toml.DecodeError); ok {
			line, _ := at.Position()
			where = fmt.Sprintf("task.toml:%d", line)
		}
		return where + ": " + tomldoc.OneLine(strings.TrimPrefix(err.Error(), "toml: "))
	}
	t.unknown("", root)
	env, reason := table(root, "environment")
	if reason != "" {
		return reason
	}
	for _, key := range []string{"image", "docker_image"} { // the second is the older name, and the one that counts
		switch v := env[key].(type) {
		case nil:
		case string:
			t.DockerImage = strings.TrimSpace(v)
		default:
			return fmt.Sprintf("task.toml: environment.%s must be text, such as \"python:3.12\"", key)
		}
	}
	if v, given := env["build_timeout_sec"]; given {
		sec, ok := number(v)
		if !ok || !(sec > 0) || sec > math.MaxInt32 {
			return "task.toml: environment.build_timeout_sec must be a number of seconds above 0"
		}
		t.BuildTimeout = time.Duration(sec * float64(time.Second))
	}
	if v, _ := env["os"].(string); v != "" && !strings.EqualFold(v, "linux") {
		t.Notes = append(t.Notes, "it is for "+tomldoc.OneLine(v))
	}
	for _, key := range []string{"tpu", "gpus"} {
		if n, ok := number(env[key]); env[key] != nil && !(ok && n == 0) {
			t.Notes = append(t.Notes, "it asks for "+key)
		}
	}
	return ""
}

func table(root map[string]any, key string) (map[string]any, string) {
	switch v := root[key].(type) {
	case nil:
		return nil, ""
	case map[string]any:
		return v, ""
	}
	return nil, fmt.Sprintf("task.toml: %s must be a table: [%s] on a line of its own", key, key)
}

func number(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// unknown warns of the keys of a table that are not known, and of those below it.
func (t *Task) unknown(name string, of map[string]any) {
	words := known[name]
	for _, key := range slices.Sorted(maps.Keys(of)) {
		full := strings.TrimPrefix(name+"."+key, ".")
		if !slices.Contains(words, key) {
			text := fmt.Sprintf("task.toml: the key %s is not known", tomldoc.OneLine(full))
			if hint := suggest.Hint(key, words); hint != "" {
				text += ": " + hint
			}
			t.Warnings = append(t.Warnings, text)
			continue
		}
		if _, below := known[full]; below {
			if sub, ok := of[key].(map[string]any); ok {
				t.unknown(full, sub)
			}
		}
	}
}
