package task

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"fence/pkg/internal/tomldoc"
)

// mainService is the service that is the task's container, in Harbor.
const mainService = "main"

// compose takes from a compose file how the image of its service main is made,
// or says why that cannot be done here: a trial is one container, so other
// services are not there. What else it says of main (volumes, ports) is not
// for the image and is a note.
func (t *Task) compose(data []byte) (reason string) {
	var file struct {
		Include  any
		Services map[string]map[string]any
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return tomldoc.OneLine(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if file.Include != nil {
		return "it includes other files, which is not supported"
	}
	main, ok := file.Services[mainService]
	if !ok {
		if len(file.Services) == 0 {
			return "it has no services"
		}
		return "it has no service main"
	}
	if others := slices.DeleteFunc(slices.Sorted(maps.Keys(file.Services)), func(s string) bool { return s == mainService }); len(others) > 0 {
		return fmt.Sprintf("it needs the services %s beside main, and a trial is one container", tomldoc.OneLine(strings.Join(others, ", ")))
	}
	image, _ := main["image"].(string)
	if main["build"] == nil && image != "" && t.Dockerfile == "" {
		if strings.Contains(image, "$") {
			return "the image of main depends on variables"
		}
		t.DockerImage = image
		return ""
	}
	if reason := t.build(main["build"]); reason != "" {
		return reason
	}
	var more []string
	for _, key := range slices.Sorted(maps.Keys(main)) {
		if key != "build" && key != "image" && key != "command" {
			more = append(more, key)
		}
	}
	if len(more) > 0 {
		t.Notes = append(t.Notes, "its compose file also sets "+tomldoc.OneLine(strings.Join(more, ", "))+" of main")
	}
	return ""
}

// build reads services.main.build: a folder, or a table.
func (t *Task) build(v any) (reason string) {
	b := map[string]any{}
	switch v := v.(type) {
	case nil:
	case string:
		b["context"] = v
	case map[string]any:
		b = v
	default:
		return "services.main.build must be a folder or a table"
	}
	file := "Dockerfile"
	for _, key := range slices.Sorted(maps.Keys(b)) {
		text, isText := b[key].(string)
		if isText && strings.Contains(text, "$") && !strings.Contains(text, "${CONTEXT_DIR}") {
			return fmt.Sprintf("services.main.build.%s depends on variables", tomldoc.OneLine(key))
		}
		switch {
		case key == "context" && isText:
			// Harbor sets CONTEXT_DIR to the folder environment.
			if text = strings.ReplaceAll(text, "${CONTEXT_DIR}", "."); !filepath.IsLocal(text) {
				return "the context of main is outside environment"
			}
			t.Context = filepath.Join(t.Context, text)
		case key == "dockerfile" && isText:
			if !filepath.IsLocal(text) {
				return "the Dockerfile of main is outside environment"
			}
			file = text
		case key == "target" && isText:
			t.Target = text
		case key == "args":
			if reason := t.arguments(b[key]); reason != "" {
				return reason
			}
		default:
			return fmt.Sprintf("services.main.build.%s is not supported", tomldoc.OneLine(key))
		}
	}
	if !isFile(t.Context, file) {
		return fmt.Sprintf("the Dockerfile of main, %s, is missing", filepath.Join(filepath.Base(t.Context), file))
	}
	t.Dockerfile = filepath.Join(t.Context, file)
	return ""
}

// arguments reads build arguments: a table, or a list of NAME=VALUE.
func (t *Task) arguments(v any) (reason string) {
	t.Args = map[string]string{}
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			t.Args[name] = fmt.Sprint(value)
		}
	case []any:
		for _, kv := range v {
			name, value, ok := strings.Cut(fmt.Sprint(kv), "=")
			if !ok {
				return fmt.Sprintf("the build argument %s takes its value from the environment, which is not supported", tomldoc.OneLine(name))
			}
			t.Args[name] = value
		}
	case nil:
	default:
		return "services.main.build.args must be a table or a list"
	}
	for name, value := range t.Args {
		if strings.Contains(value, "$") || value == "<nil>" {
			return fmt.Sprintf("the build argument %s takes its value from the environment, which is not supported", tomldoc.OneLine(name))
		}
	}
	return ""
}
