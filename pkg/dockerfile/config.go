package dockerfile

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// maxPorts is what all EXPOSE of a file may come to, each port as often as it is
// named: a line has room for ranges that would take all memory.
const maxPorts = 1 << 20

func (b *builder) expose(s *stage, c *instructions.ExposeCommand) error {
	var all []string
	for _, p := range c.Ports {
		p, err := b.lexable(lineOf(c.Location()), p)
		if err != nil {
			return err
		}
		if _, err := b.expand(b.lex, lineOf(c.Location()), p, &s.env, s.declared); err != nil {
			return err // and one that is too large is not split
		}
		words, err := b.lex.ProcessWords(p, &s.env)
		if err != nil {
			return err
		}
		for _, w := range words {
			ports, err := parsePorts(w)
			if err != nil {
				return err
			}
			if b.ports += len(ports); b.ports > maxPorts {
				return fmt.Errorf("the file names more than %d ports", maxPorts)
			}
			all = append(all, ports...)
		}
	}
	if s.Config.ExposedPorts == nil {
		s.Config.ExposedPorts = map[string]struct{}{}
	}
	for _, p := range all {
		s.Config.ExposedPorts[p] = struct{}{}
	}
	return nil
}

// parsePorts reads [[IP:]HOST:]PORT[-PORT][/PROTOCOL], where BuildKit ignores
// what is in front of the ports of the container once it was read.
func parsePorts(spec string) ([]string, error) {
	parts := strings.Split(spec, ":")
	n := len(parts)
	host, ip := "", ""
	if n > 1 {
		host = parts[n-2]
	}
	if n > 2 {
		ip = strings.Join(parts[:n-2], ":")
	}
	ports, proto, _ := strings.Cut(parts[n-1], "/")
	if ports == "" {
		return nil, fmt.Errorf("%q names no port", spec)
	}
	switch proto = strings.ToLower(proto); proto {
	case "":
		proto = "tcp"
	case "tcp", "udp", "sctp":
	default:
		return nil, fmt.Errorf("%q: the protocol %s is none of tcp, udp and sctp", spec, proto)
	}
	if ip = strings.TrimSuffix(strings.TrimPrefix(ip, "["), "]"); ip != "" && net.ParseIP(ip) == nil {
		return nil, fmt.Errorf("%q: %s is not an IP address", spec, ip)
	}
	first, last, err := portRange(ports)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", spec, err)
	}
	if host != "" {
		from, to, err := portRange(host)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", spec, err)
		}
		if first != last && to-from != last-first {
			return nil, fmt.Errorf("%q: the ranges %s and %s differ in length", spec, host, ports)
		}
	}
	var list []string
	for p := first; p <= last; p++ {
		list = append(list, strconv.Itoa(p)+"/"+proto)
	}
	return list, nil
}

func portRange(s string) (first, last int, err error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	for _, part := range []struct {
		text string
		port *int
	}{{from, &first}, {to, &last}} {
		*part.port, err = strconv.Atoi(part.text)
		if err != nil || *part.port < 0 || *part.port > 65535 {
			return 0, 0, fmt.Errorf("%q is not a port", part.text)
		}
	}
	if last < first {
		return 0, 0, fmt.Errorf("the range %s runs backwards", s)
	}
	return first, last, nil
}
