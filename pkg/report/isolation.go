package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Isolation is what held in a run, for those who run the cluster: each list
// says of how many trials.
type Isolation struct {
	Unknown  int      `json:"unknown"` // trials without a record of it
	From     string   `json:"from"`    // when the first trial began, RFC 3339; "" without trials
	To       string   `json:"to"`      // when the last one ended
	Users    []Count  `json:"users"`
	Nodes    []Count  `json:"nodes"`
	Jobs     []Count  `json:"jobs"`     // of Slurm
	Versions []Count  `json:"versions"` // of rollout, Apptainer, kernel, Landlock
	Servers  []Count  `json:"model_servers"`
	Forms    []Count  `json:"forms"`
	Networks []Count  `json:"networks"`
	Gates    []Count  `json:"gates"`
	Limits   []Count  `json:"limits"`
	Opened   []Opened `json:"opened"`
}

// Opened is a loosening, and in how many trials.
type Opened struct {
	What   string `json:"what"`
	Why    string `json:"why"`
	Trials int    `json:"trials"`
}

func isolation(trials []Trial) Isolation {
	out := Isolation{Opened: []Opened{}}
	forms, networks, gates, limits := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	opened := map[[2]string]int{}
	users, nodes, jobs, versions, servers := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	var from, to time.Time
	for _, t := range trials {
		i := t.Isolation
		if i == nil {
			out.Unknown++
			continue
		}
		if from.IsZero() || t.StartedAt.Before(from) {
			from = t.StartedAt
		}
		if t.FinishedAt.After(to) {
			to = t.FinishedAt
		}
		note(nodes, t.Node)
		if h := i.Host; h != nil {
			note(users, h.User)
			note(jobs, h.Job)
			note(servers, h.Server)
			note(versions, fmt.Sprintf("rollout %s, Apptainer %s, Linux %s, Landlock ABI %d", h.Rollout, h.Apptainer, h.Kernel, h.Landlock))
		}
		form := "agent: policy " + i.Agent.Policy + ", " + i.Agent.Form + " form; tests: policy " + i.Verifier.Policy + ", " + i.Verifier.Form + " form; "
		if i.Below {
			form += "the agent's below"
		} else {
			form += "side by side (" + cmp.Or(i.Beside, "no reason given") + ")"
		}
		forms[form]++
		network := i.Agent.Network
		if i.Verifier.Network != network {
			network += ", of the tests " + i.Verifier.Network
		}
		asked := "the tasks ask for " + i.Asked
		if i.Asked == "" {
			asked = "the tasks say nothing of it"
		}
		networks[network+" ("+asked+")"]++
		gates[cmp.Or(i.Gate, "not said")]++
		limits[cmp.Or(i.Limits, "not said")]++
		seen := map[[2]string]bool{}
		for _, o := range i.Opened {
			if k := [2]string{o.What, o.Why}; !seen[k] {
				seen[k] = true
				opened[k]++
			}
		}
	}
	if !from.IsZero() {
		out.From, out.To = from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339)
	}
	out.Users, out.Nodes, out.Jobs, out.Versions, out.Servers = counts(users), counts(nodes), counts(jobs), counts(versions), counts(servers)
	out.Forms, out.Networks, out.Gates, out.Limits = counts(forms), counts(networks), counts(gates), counts(limits)
	for k, n := range opened {
		out.Opened = append(out.Opened, Opened{k[0], k[1], n})
	}
	slices.SortFunc(out.Opened, func(a, b Opened) int {
		return cmp.Or(cmp.Compare(b.Trials, a.Trials), cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why))
	})
	return out
}

// note counts a word, if there is one.
func note(m map[string]int, word string) {
	if word != "" {
		m[word]++
	}
}
