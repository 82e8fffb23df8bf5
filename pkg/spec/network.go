package spec

import (
	"net/netip"
	"regexp"
	"strings"
)

var hostLabel = regexp.MustCompile(`\A[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\z`)

// network reads what a table says of the network, in the words of schema 1.4.
func (t table) network() Network {
	n := Network{Mode: t.word("network_mode", "public", "no-network", "allowlist")}
	for _, h := range t.texts("allowed_hosts") {
		host, ok := normalHost(h)
		if !ok {
			t.wrong("allowed_hosts", `a list of host names, IP addresses or ranges, such as ["example.com", "*.example.com", "192.0.2.0/24"], without ports`)
		}
		n.Hosts = append(n.Hosts, host)
	}
	if len(n.Hosts) > 0 && n.Mode != "allowlist" {
		t.refuse("", `task.toml: %s counts only with network_mode = "allowlist"`, t.name("allowed_hosts"))
	}
	return n
}

// baseline is the network of an environment, which has the older
// allow_internet, too.
func (t table) baseline() Network {
	n, allow := t.network(), t.yes("allow_internet")
	switch {
	case allow == nil:
	case n.Mode == "" && *allow:
		n.Mode = "public"
	case n.Mode == "":
		n.Mode = "no-network"
	case n.Mode == "public" && !*allow, n.Mode == "no-network" && *allow:
		t.refuse("remove "+t.name("allow_internet")+", which is the older form", "task.toml: %s is %v and %s is %s", t.name("allow_internet"), *allow, t.name("network_mode"), n.Mode)
	case !*allow:
		t.warn("task.toml: %s is false and %s is %s, which counts", t.name("allow_internet"), t.name("network_mode"), n.Mode)
	}
	return n
}

// normalHost is an entry of allowed_hosts as it is compared: in small letters,
// addresses in their shortest form.
func normalHost(h string) (string, bool) {
	h = strings.TrimRight(strings.ToLower(strings.TrimSpace(h)), ".")
	if strings.Contains(h, "/") {
		p, err := netip.ParsePrefix(h)
		return p.String(), err == nil && p == p.Masked()
	}
	if strings.Contains(h, ":") {
		a, err := netip.ParseAddr(h)
		return a.String(), err == nil && a.Zone() == ""
	}
	name, wild := strings.CutPrefix(h, "*.")
	if _, err := netip.ParseAddr(name); wild && err == nil {
		return "", false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !hostLabel.MatchString(label) {
			return "", false
		}
	}
	return h, true
}
