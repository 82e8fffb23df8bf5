package spec

import (
	"maps"
	"slices"
	"strings"

	"fence/pkg/internal/text"
)

// A container is packaging and the fence shares the node's kernel: what is made
// to break out of things is not run without a person having thought about it.
var sensitiveWords = []string{"security", "cybersecurity", "infosec", "exploit", "exploits", "exploitation", "vulnerability", "vulnerabilities",
	"ctf", "pwn", "hacking", "malware", "pentest", "pentesting", "penetration", "rootkit", "jailbreak"}

// sensitive says which category or tag of a task is about security, "" for
// none. Tasks name these as they like, so the values of any key that sounds
// like one are looked at.
func sensitive(metadata map[string]any, keywords any) string {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		switch strings.ToLower(key) {
		case "category", "categories", "subcategory", "subcategories", "tags", "tag", "keywords", "type", "domain":
			if word := sensitiveWord(metadata[key]); word != "" {
				return "metadata." + text.Printable(key) + " has " + word
			}
		}
	}
	if word := sensitiveWord(keywords); word != "" {
		return "task.keywords has " + word
	}
	return ""
}

func sensitiveWord(v any) string {
	switch v := v.(type) {
	case string:
		parts := strings.FieldsFunc(strings.ToLower(v), func(c rune) bool { return strings.ContainsRune(" -_/,;:", c) })
		if slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(sensitiveWords, p) }) {
			return text.Printable(v)
		}
	case []any:
		for _, x := range v {
			if word := sensitiveWord(x); word != "" {
				return word
			}
		}
	}
	return ""
}
