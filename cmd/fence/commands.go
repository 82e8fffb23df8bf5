package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/cli"
	"fence/pkg/nodecheck"
	"fence/pkg/policy"
	"fence/pkg/sandbox"
	"fence/pkg/status"
	"fence/policies"
)

const help = `fence gives COMMAND its own view of the machine (Landlock, seccomp, and
namespaces where the node allows them), then becomes it: no wrapper process
stays (but with --net loopback or proxy on a node without network namespaces),
and exit status and signals are the command's own. If any part cannot be
applied, nothing runs and the exit code is 125.

Subcommands, always the first word:
  fence env        for eval: apptainer exec then mounts nothing of the site
  fence check      what this node can enforce, and which policies run here
  fence explain    what a policy comes to here: the same flags, runs nothing
  fence policies   the built-in policies, or one of them
  fence serve      a session: several commands, one fence that stays up
  fence run        a command in a session; fence put and fence get: files

A policy of your own is a TOML file that starts from a built-in one:
  version = 1
  extends = "strict"
  [[open]]
  path = "/wheels"
  access = "read"
  why = "offline wheelhouse: no network, tasks pip install"

Examples:
  fence -- python3 - < solve.py
  fence --read "$PWD" --why "the task's own files" -- python3 solve.py
  fence --policy ./wheels.toml -- bash -s < solve.sh
  eval "$(fence env)"; apptainer exec img.sif /.fence/fence -- ls /

A hidden folder, as your home is, is no working folder: COMMAND starts in /.

Exit codes: 125 not fenced and not run; 126 the command cannot be executed;
127 there is no such command; 2 wrong flags or a policy that does not parse;
otherwise the command's own. Of the subcommands: 0 yes, 1 no, 2, 3 could not
tell, or not print all of it.`

func commands() *urfave.App {
	asJSON := &urfave.BoolFlag{Name: "json", Usage: "print a JSON record"}
	return &urfave.App{
		Name:            "fence",
		Usage:           "run a command with nothing of the cluster in its reach",
		UsageText:       "fence [flags] -- COMMAND [ARGUMENT...]",
		Description:     help,
		HideHelpCommand: true,
		Action: func(c *urfave.Context) error {
			hint := "fence -- " + c.Args().First() + " runs it as a command"
			if s := cli.Suggest(c.Args().First(), []string{"env", "check", "explain", "policies", "serve", "run", "put", "get"}); s != "" {
				hint = "did you mean fence " + s + "?\n" + hint
			}
			return cli.Usagef(hint, "%q is not a subcommand", c.Args().First())
		},
		Commands: append([]*urfave.Command{
			{
				Name:      "env",
				Usage:     "print export lines for eval: apptainer exec then mounts nothing of the site",
				UsageText: `eval "$(fence env)"`,
				Description: `Sets APPTAINER_* so that a container sees nothing of the site, has its own
/tmp, /dev, processes and environment, and has these tools, read-only, below
/.fence. A big /tmp needs a folder: --tmp DIR (each job its own).

Examples:
  eval "$(fence env)"
  apptainer exec img.sif /.fence/fence -- python3 - < solve.py
  mkdir "$TMPDIR/big"; eval "$(fence env --tmp "$TMPDIR/big")"

Exit codes: 0 the lines were printed, 2 wrong flags, 3 could not tell where
fence lies, or not print all.`,
				Flags:  []urfave.Flag{&urfave.StringFlag{Name: "tmp", Usage: "use the folder `DIR` of this job, on a local disk, for /tmp and /var/tmp inside"}},
				Action: noArguments(printEnv),
			},
			{
				Name:  "check",
				Usage: "say what this node can enforce, and which built-in policies can run here",
				Description: `Tries each thing in a child process and changes nothing.

Examples:
  fence check
  srun fence check                       (a compute node, not the login node)
  apptainer exec img.sif /.fence/fence check
  fence check --json | jq .node.landlock.abi

Exit codes: 0 the strict policy can be enforced here, 1 it cannot, and the
lines say why, 2 wrong flags, 3 not all of it could be printed.`,
				Flags:  []urfave.Flag{asJSON},
				Action: noArguments(check),
			},
			{
				Name:      "explain",
				Usage:     "say what a policy comes to on this node; runs nothing",
				UsageText: "fence explain [the flags of a launch] [--json]",
				Description: `Takes the flags of a launch and says what they come to: what is hidden and
how, what is opened and why, what this node cannot do.

Examples:
  fence explain
  fence explain --policy ./wheels.toml
  apptainer exec img.sif /.fence/fence explain --form bare
  fence explain --json | jq .status.hidden

Exit codes: 0 it can be enforced here, 125 it cannot, with the reason, 2 wrong
flags or a policy that does not parse, 3 not all of it could be printed.`,
				Flags:  append(policyFlags(), asJSON),
				Action: noArguments(explain),
			},
			{
				Name:      "policies",
				Usage:     "list the built-in policies, or print one",
				ArgsUsage: "[NAME]",
				Description: `Examples:
  fence policies
  fence policies strict > mine.toml        (a start for a policy of your own)

Exit codes: 0 printed, 2 there is no such policy, 3 not all could be printed.`,
				Action: printPolicies,
			},
		}, sessionCommands()...),
	}
}

// noArguments refuses what a command would pass over in silence: "fence env
// CMD" starts nothing.
func noArguments(action urfave.ActionFunc) urfave.ActionFunc {
	return func(c *urfave.Context) error {
		if c.Args().Present() {
			return cli.Usagef("fence [flags] -- COMMAND runs a command", "fence %s takes flags only: %q", c.Command.Name, c.Args().First())
		}
		return action(c)
	}
}

func printPolicies(c *urfave.Context) error {
	if c.NArg() > 1 {
		return cli.Usagef("", "fence policies takes one name: %q", c.Args().Get(1))
	}
	if name := c.Args().First(); name != "" {
		data, ok := policies.Get(name)
		if !ok {
			return cli.Usagef("built in are: "+strings.Join(policies.Names(), ", "), "%q is not a built-in policy", name)
		}
		_, err := c.App.Writer.Write(data)
		return err
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	for _, name := range policies.Names() {
		fmt.Fprintf(w, "%s\t%s\n", name, policies.Summary(name))
	}
	return w.Flush()
}

// exports are what makes `apptainer exec` mount nothing of the site. See
// the ENVIRONMENT section of apptainer-exec(1); every flag has a variable.
func exports(tools, tmp string) [][2]string {
	var binds []string
	// One by one: the folder they lie in may hold anything.
	for _, name := range []string{"fence", "probe"} {
		if p := filepath.Join(tools, name); executable(p) {
			binds = append(binds, p+":/.fence/"+name+":ro")
		}
	}
	vars := [][2]string{
		{"BINDPATH", strings.Join(binds, ",")},
		{"NO_MOUNT", "bind-paths,home,cwd,hostfs"},
		{"CONTAIN", "1"},
		{"CLEANENV", "1"},
		{"PID", "1"},
		{"IPC", "1"},
		{"NO_EVAL", "1"}, // the image's variables are data, as in Docker
		// With --fakeroot it would run the image's shell before anything else.
		{"IGNORE_FAKEROOT_COMMAND", "1"},
		{"CWD", "/"}, // the caller's folder is not there
	}
	if tmp != "" {
		vars = append(vars, [2]string{"WORKDIR", tmp})
	}
	return vars
}

func executable(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

func printEnv(c *urfave.Context) error {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return &cli.Error{Code: cli.Unknown, Err: fmt.Errorf("finding out where fence lies: %w", err)}
	}
	tmp := c.String("tmp")
	if c.IsSet("tmp") {
		if st, err := os.Stat(tmp); err != nil || !st.IsDir() || !filepath.IsAbs(tmp) {
			return cli.Usagef(`mkdir it first, on a local disk: --tmp "$TMPDIR"`, "--tmp: %s is not the absolute path of a folder", tmp)
		}
	}
	if strings.ContainsAny(self+tmp, ",:'\n") {
		return cli.Usagef("move fence to another folder", "a path with a comma, colon or quote cannot be handed to apptainer: %s", self)
	}
	// A bind or mount that the person set would come back in: say so.
	for _, prefix := range []string{"APPTAINER_", "SINGULARITY_"} {
		for _, name := range []string{"BIND", "BINDPATH", "MOUNT"} {
			if v := os.Getenv(prefix + name); v != "" && prefix+name != "APPTAINER_BINDPATH" {
				fmt.Fprintf(os.Stderr, "fence: %s%s is set and adds mounts of its own (unset it, or it is seen inside)\n", prefix, name)
			}
		}
	}
	for _, v := range exports(filepath.Dir(self), tmp) {
		fmt.Fprintf(c.App.Writer, "export APPTAINER_%s='%s'\n", v[0], v[1])
	}
	return nil
}

// Check is what fence check prints with --json.
type Check struct {
	Schema   string         `json:"schema"`
	Node     nodecheck.Node `json:"node"`
	Policies []CanRun       `json:"policies"`
}

// CanRun says whether a built-in policy can be enforced on this node.
type CanRun struct {
	Policy string   `json:"policy"`
	OK     bool     `json:"ok"`
	Form   string   `json:"form,omitempty"`
	Why    []string `json:"why,omitempty"`  // it cannot
	Lost   []string `json:"lost,omitempty"` // it can, without these
}

// offered are the namespaces that a launch would have here: fence check and
// explain try them in a child and stay where they are.
func offered(h nodecheck.Node, network policy.NetworkMode) sandbox.Namespaces {
	tried := func(t nodecheck.Tried) error {
		if t.OK {
			return nil
		}
		return errors.New(t.String())
	}
	ns := sandbox.Namespaces{User: tried(h.UserNS), Mount: tried(h.MountNS), IPC: tried(h.IPCNS), Net: sandbox.ErrNotTried}
	ns.PrivateIPC = ns.User == nil && ns.Mount == nil && ns.IPC == nil
	if network != policy.NetworkHost {
		ns.Net = tried(h.NetNS)
	}
	return ns
}

func check(c *urfave.Context) error {
	out := Check{Schema: "fence.check/v1", Node: nodecheck.Detect()}
	for _, name := range policies.Names() {
		p, err := options{policy: name}.load()
		if err != nil {
			return err
		}
		can := CanRun{Policy: name}
		rs, err := resolve(p, options{}, offered(out.Node, p.Network.Mode))
		var refusal *sandbox.Refusal
		switch {
		case errors.As(err, &refusal):
			for _, problem := range refusal.Problems {
				can.Why = append(can.Why, problem.What)
			}
		case err != nil:
			can.Why = []string{err.Error()}
		default:
			can.OK, can.Form, can.Lost = true, rs.Form.String(), rs.Lost
		}
		out.Policies = append(out.Policies, can)
	}
	if c.Bool("json") {
		out.Node.Seccomp.Actions = append([]string{}, out.Node.Seccomp.Actions...) // a list, also of none
		if err := printJSON(c.App.Writer, out); err != nil {
			return err
		}
	} else {
		out.print(c.App.Writer)
	}
	if !out.Policies[0].OK {
		return cli.Exit(cli.No)
	}
	return nil
}

// print is the record for a person: a reason that is that of several policies
// stands once, with the first.
func (c Check) print(w io.Writer) {
	for line := range strings.Lines(c.Node.String()) {
		cli.Wrap(w, line[:16], line[16:])
	}
	fmt.Fprintln(w)
	said := map[string]bool{}
	for _, can := range c.Policies {
		answer, reasons := "can run here, "+can.Form+" form", can.Lost
		if !can.OK {
			answer, reasons = "cannot run here", can.Why
		}
		more := slices.DeleteFunc(slices.Clone(reasons), func(r string) bool { return said[r] })
		if len(more) < len(reasons) {
			answer += ", see above"
		}
		fmt.Fprintf(w, "%-13s %s\n", can.Policy, answer)
		for _, r := range more {
			cli.Wrap(w, "              - ", r)
			said[r] = true
		}
	}
}

// Explanation is what fence explain prints with --json.
type Explanation struct {
	Schema string             `json:"schema"`
	Status status.Status      `json:"status"` // what --status-fd would get
	Paths  []sandbox.PathRule `json:"paths"`
	Mounts []sandbox.MountOp  `json:"mounts"`
	Env    []string           `json:"env"`    // names
	Limits []string           `json:"limits"` // "nofile=4096"
	Legs   []status.Leg       `json:"trifecta"`
}

func explain(c *urfave.Context) error {
	o, err := optionsFrom(c)
	if err != nil {
		return err
	}
	p, err := o.load()
	if err != nil {
		return err
	}
	ns := offered(nodecheck.Detect(), p.Network.Mode)
	if o.form == "bare" {
		ns = sandbox.Namespaces{User: sandbox.ErrNotTried, Mount: sandbox.ErrNotTried, Net: sandbox.ErrNotTried, IPC: sandbox.ErrNotTried}
	}
	rs, err := resolve(p, o, ns)
	if err != nil {
		return err
	}
	st, err := status.Of(rs)
	if err != nil {
		return notFenced(err, "")
	}
	if c.Bool("json") {
		out := Explanation{
			Schema: "fence.explain/v1", Status: st, Paths: append([]sandbox.PathRule{}, rs.Paths...), Mounts: append([]sandbox.MountOp{}, rs.Mounts...),
			Env: names(rs.Env), Limits: []string{}, Legs: status.Trifecta(rs),
		}
		for _, l := range p.Limits {
			out.Limits = append(out.Limits, l.String())
		}
		return printJSON(c.App.Writer, out)
	}
	return status.Explain(rs, c.App.Writer)
}

func names(environ []string) []string {
	out := []string{}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
