package images

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// fields of an image's configuration that Canonical shows.
var fields = []string{"User", "Env", "Cmd", "Entrypoint", "WorkingDir", "Labels", "ExposedPorts", "Volumes",
	"StopSignal", "Healthcheck", "Shell", "OnBuild"}

// Canonical writes the configuration of an image, the object "config" of an OCI
// image configuration in JSON, in the one way that two of them can be compared:
// keys sorted, two spaces, a newline at the end, nothing that is empty, and only
// what a Dockerfile decides.
func Canonical(config []byte) (string, error) {
	var all map[string]any
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		return "", fmt.Errorf("reading an image's configuration: %w", err)
	}
	for key, value := range all {
		if !slices.Contains(fields, key) || isEmpty(value) {
			delete(all, key)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(all); err != nil {
		return "", err
	}
	return b.String(), nil
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
