package report

import (
	"cmp"
	"slices"
)

// Isolation is what held in a run, for those who run the cluster: each list
// says of how many trials.
type Isolation struct {
	Unknown  int      `json:"unknown"` // trials without a record of it
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
	for _, t := range trials {
		i := t.Isolation
		if i == nil {
			out.Unknown++
			continue
		}
		form := "agent " + i.Agent.Policy + " in the " + i.Agent.Form + " form, verifier " + i.Verifier.Policy + " in the " + i.Verifier.Form + " form, "
		if i.Below {
			form += "the agent's below"
		} else {
			form += "side by side (" + cmp.Or(i.Beside, "no reason given") + ")"
		}
		forms[form]++
		network := i.Agent.Network
		if i.Verifier.Network != network {
			network += ", verifier " + i.Verifier.Network
		}
		networks[network+" (asked for: "+cmp.Or(i.Asked, "nothing")+")"]++
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
	out.Forms, out.Networks, out.Gates, out.Limits = counts(forms), counts(networks), counts(gates), counts(limits)
	for k, n := range opened {
		out.Opened = append(out.Opened, Opened{k[0], k[1], n})
	}
	slices.SortFunc(out.Opened, func(a, b Opened) int {
		return cmp.Or(cmp.Compare(b.Trials, a.Trials), cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why))
	})
	return out
}
