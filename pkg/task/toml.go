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

// keys are the words of a table, with those of the tables below each, or of
// the tables in its list; nil is whatever a task wants.
type keys map[string]keys

// known are the keys of task.toml up to schema 1.4.
var known = keys{
	"schema_version": nil, "version": nil, "source": nil, "multi_step_reward_strategy": nil, "metadata": nil,
	"task":        {"name": nil, "version": nil, "description": nil, "authors": nil, "keywords": nil},
	"agent":       agentKeys,
	"verifier":    verifierKeys,
	"solution":    {"env": nil},
	"environment": environmentKeys,
	"artifacts":   artifactKeys,
	"steps": {"name": nil, "agent": agentKeys, "verifier": verifierKeys, "min_reward": nil, "healthcheck": healthcheckKeys,
		"artifacts": artifactKeys},
}

var (
	agentKeys    = keys{"timeout_sec": nil, "user": nil, "network_mode": nil, "allowed_hosts": nil}
	verifierKeys = keys{"timeout_sec": nil, "env": nil, "user": nil, "environment_mode": nil, "environment": environmentKeys,
		"collect":      {"command": nil, "service": nil, "timeout_sec": nil, "user": nil},
		"network_mode": nil, "allowed_hosts": nil}
	environmentKeys = keys{"build_timeout_sec": nil, "docker_image": nil, "image": nil, "os": nil, "cpus": nil, "memory_mb": nil,
		"storage_mb": nil, "gpus": nil, "gpu_types": nil, "tpu": nil, "allow_internet": nil, "network_mode": nil, "allowed_hosts": nil,
		"mcp_servers": nil, "env": nil, "skills_dir": nil, "workdir": nil, "healthcheck": healthcheckKeys, "memory": nil, "storage": nil}
	healthcheckKeys = keys{"command": nil, "interval_sec": nil, "timeout_sec": nil, "start_period_sec": nil, "start_interval_sec": nil, "retries": nil}
	artifactKeys    = keys{"source": nil, "destination": nil, "exclude": nil, "service": nil}
)

// Settings reads the tables of a task.toml, or says in one line why they cannot
// be read. What is in them has not been looked at.
func Settings(data []byte) (root map[string]any, reason string) {
	if len(data) > settingsLimit {
		return nil, fmt.Sprintf("task.toml is longer than %d bytes", settingsLimit)
	}
	if err := toml.Unmarshal(data, &root); err != nil {
		where := "task.toml"
		if at, ok := err.(*toml.DecodeError); ok {
			line, _ := at.Position()
			where = fmt.Sprintf("task.toml:%d", line)
		}
		return nil, where + ": " + tomldoc.OneLine(strings.TrimPrefix(err.Error(), "toml: "))
	}
	return root, ""
}

// settings takes from task.toml what the image is made from. Unknown keys are
// warnings: Harbor ignores them, and schemas grow.
func (t *Task) settings(data []byte) (reason string) {
	root, reason := Settings(data)
	if reason != "" {
		return reason
	}
	t.unknown("", root, known)
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
func (t *Task) unknown(name string, of map[string]any, words keys) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		full := strings.TrimPrefix(name+"."+key, ".")
		below, isKnown := words[key]
		if !isKnown {
			text := fmt.Sprintf("task.toml: the key %s is not known", tomldoc.OneLine(full))
			if hint := suggest.Hint(key, slices.Sorted(maps.Keys(words))); hint != "" {
				text += ": " + hint
			}
			t.Warnings = append(t.Warnings, text)
			continue
		}
		if below == nil {
			continue
		}
		switch v := of[key].(type) {
		case map[string]any:
			t.unknown(full, v, below)
		case []any:
			for i, x := range v {
				if sub, ok := x.(map[string]any); ok {
					t.unknown(fmt.Sprintf("%s[%d]", full, i), sub, below)
				}
			}
		}
	}
}
