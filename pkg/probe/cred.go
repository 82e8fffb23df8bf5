package probe

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// credChecks are group G: names, modes and sizes, never content.
func credChecks() []Check {
	each := func(c Check) Check {
		c.Group, c.Severity, c.Worker = "cred", cmpOr(c.Severity, "high"), cmpOr(c.Worker, classCred)
		return c
	}
	return []Check{
		each(Check{
			ID: "cred.env", Attack: []string{"T1552.007"}, Worker: classSelf, targets: credEnv, try: credEnvOne,
			none: func(*site) Finding {
				return Finding{Outcome: Absent, Evidence: fmt.Sprintf("none of %d variable names looks like a credential", len(os.Environ()))}
			},
			What: "looks for variables whose names, or URLs whose form, say credential; tells the name and the length",
			Why:  "containers pass the whole environment on unless told not to",
		}),
		each(Check{
			ID: "cred.env.loader", Severity: "medium", Attack: []string{"T1574.006"}, Worker: classSelf, targets: loaderEnv, try: loaderOne,
			none: nothing(Absent, "none is set"),
			What: "looks for variables that make programs load code, LD_PRELOAD, BASH_ENV, PYTHONPATH and the like, from outside a container's own root",
			Why:  "code that runs before the command, from wherever they point",
		}),
		each(Check{
			ID: "cred.files", Attack: []string{"T1552.001", "T1552.004"}, targets: credFiles, try: credFile, limit: fsLimit,
			What: "opens the usual files of keys and tokens, in the home folder and the system's, and reads nothing",
			Why:  "each is somebody's account elsewhere",
		}),
		each(Check{
			ID: "cred.files.write", Attack: []string{"T1098.004", "T1546.004"}, targets: plantFiles, try: credPlant, limit: fsLimit,
			What: "opens authorized_keys and shell start-up files for writing, and writes nothing",
			Why:  "what is put there runs, or lets somebody in, outside the fence and later",
		}),
		each(Check{
			ID: "cred.keyring", Severity: "medium", Attack: []string{"T1552", "T1558"}, Worker: classSys, targets: to("@s", "@u", "@us"), try: credKeyring,
			What: "asks for the number of the session, user and user-session keyrings, making none",
			Why:  "Kerberos tickets and disk keys lie there, and no namespace separates them",
		}),
		each(Check{
			ID: "cred.keys", Severity: "medium", Attack: []string{"T1552"}, try: credKeys,
			What: "counts the keys in /proc/keys", Why: "names of keys say what there is to take",
		}),
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

var credName = regexp.MustCompile(`TOKEN|SECRET|PASSW|API_?KEY|_KEY$|CREDENTIAL|COOKIE|JWT|AUTH`)

// credVars are credentials, or ways to them, that the pattern does not see.
var credVars = []string{
	"SLURM_SACK_KEY", "SLURM_SACK_JWKS", "SLURM_SACK_SOCKET", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "HF_HOME", "KRB5CCNAME", "X509_USER_PROXY", "SSH_AUTH_SOCK",
	"DBUS_SESSION_BUS_ADDRESS", "GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG", "DOCKER_CONFIG", "NETRC", "PGPASSFILE", "GPG_AGENT_INFO",
}

// notCreds match the pattern and are none.
var notCreds = []string{"HF_HOME", "AWS_PROFILE"}

// isCredential says whether a variable is one, by its name, or by a URL with
// a password in it.
func isCredential(name, value string) bool {
	if value == "" || slices.Contains(notCreds, name) {
		return false
	}
	bare := strings.TrimPrefix(strings.TrimPrefix(name, "APPTAINERENV_"), "SINGULARITYENV_")
	if credName.MatchString(strings.ToUpper(bare)) || slices.Contains(credVars, bare) {
		return true
	}
	u, err := url.Parse(value)
	if err != nil || u.User == nil || u.Host == "" {
		return false
	}
	_, has := u.User.Password()
	return has
}

func credEnv(*site) []string {
	var out []string
	for _, kv := range os.Environ() {
		if name, value, _ := strings.Cut(kv, "="); isCredential(name, value) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func loaderEnv(*site) []string {
	var out []string
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "PYTHONPATH", "PYTHONSTARTUP", "PERL5LIB", "RUBYLIB", "NODE_PATH", "GCONV_PATH"} {
		if os.Getenv(name) != "" {
			out = append(out, name)
		}
	}
	return out
}

// loaderOne: what leads only into the image is the image's business.
func loaderOne(s *site, name string) Finding {
	ms, _ := s.mounts()
	for _, p := range strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ':' || r == ' ' }) {
		m, ok := mountAt(ms, p)
		if own := ok && filepath.IsAbs(p) && m.Point == "/" && s.container() != ""; !own {
			return Finding{Outcome: Reachable, Evidence: "set: " + os.Getenv(name)}
		}
	}
	return Finding{Outcome: Absent, Mechanism: "not_mounted", Evidence: "leads only into the container's own root: " + os.Getenv(name)}
}

func credEnvOne(_ *site, name string) Finding {
	v, ok := os.LookupEnv(name)
	if !ok {
		return Finding{Outcome: Absent, Evidence: "not set"}
	}
	return Finding{Outcome: Reachable, Evidence: fmt.Sprintf("set, %d bytes", len(v))}
}

// homeCreds are below the home folder, with globs.
var homeCreds = []string{
	".ssh/id_rsa", ".ssh/id_ecdsa", ".ssh/id_ed25519", ".ssh/id_*", ".ssh/config", ".aws/credentials", ".aws/config", ".config/gcloud/credentials.db", ".config/gcloud/application_default_credentials.json",
	".azure/msal_token_cache.json", ".azure/accessTokens.json", ".kube/config", ".docker/config.json", ".apptainer/docker-config.json", ".apptainer/remote.yaml",
	".apptainer/keys", ".config/containers/auth.json", ".netrc", ".git-credentials", ".config/gh/hosts.yml", ".cache/huggingface/token", ".huggingface/token",
	".config/wandb/settings", ".kaggle/kaggle.json", ".pypirc", ".npmrc", ".cargo/credentials.toml", ".pgpass", ".my.cnf", ".vault-token", ".config/rclone/rclone.conf",
	".rclone.conf", ".globus", ".globusonline", ".gnupg", ".bash_history", ".zsh_history", ".python_history", ".local/share/keyrings",
	".claude/.credentials.json", ".codex/auth.json", ".config/github-copilot/hosts.json",
}

func systemCreds(uid int) []string {
	return []string{
		"/etc/munge/munge.key", "/etc/slurm/slurm.key", "/etc/slurm/slurm.jwks", "/etc/slurm/jwt_hs256.key", "/var/spool/slurm/statesave/jwt_hs256.key", "/etc/slurm/slurmdbd.conf",
		"/etc/krb5.keytab", "/etc/shadow", "/etc/sssd/sssd.conf", "/etc/ssh/ssh_host_*_key",
		fmt.Sprintf("/tmp/krb5cc_%d*", uid), fmt.Sprintf("/run/user/%d/krb5cc*", uid), fmt.Sprintf("/tmp/x509up_u%d", uid),
		"/run/secrets", "/var/run/secrets/kubernetes.io/serviceaccount/token",
	}
}

// credFiles calls what is in the home by ~, so that reports from two homes
// can be compared.
func credFiles(s *site) []string {
	home := homeDir()
	var out []string
	for _, p := range homeCreds {
		for _, q := range s.expand(path.Join(home, p)) {
			out = append(out, "~"+strings.TrimPrefix(q, home))
		}
	}
	for _, p := range systemCreds(os.Getuid()) {
		out = append(out, s.expand(p)...)
	}
	for _, v := range []string{"KRB5CCNAME", "X509_USER_PROXY", "GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG", "NETRC"} {
		if p := strings.TrimPrefix(os.Getenv(v), "FILE:"); filepath.IsAbs(p) {
			out = append(out, path.Clean(p))
		}
	}
	return out
}

// homeDir is where this user's dotfiles are, "/nonexistent" for nowhere.
func homeDir() string {
	if h := os.Getenv("HOME"); filepath.IsAbs(h) && path.Clean(h) != "/" {
		return path.Clean(h)
	}
	if h := passwdHome(); filepath.IsAbs(h) && path.Clean(h) != "/" {
		return path.Clean(h)
	}
	return "/nonexistent"
}

func credFile(s *site, target string) Finding {
	p := target
	if rest, ok := strings.CutPrefix(target, "~"); ok {
		p = homeDir() + rest
	}
	if unmatched(p) {
		return s.noMatch(p)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
	}
	if f, ok := s.covered(p); ok {
		return f
	}
	f := tryDevice(s, p)
	if f.Outcome == Reachable {
		f.Evidence = fmt.Sprintf("opened, nothing read; mode %o, %d bytes", st.Mode&0o7777, st.Size)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			f.Evidence = fmt.Sprintf("the folder was opened, nothing listed; mode %o", st.Mode&0o7777)
		}
	}
	return f
}

// plantFiles are what other programs run or trust later.
func plantFiles(*site) []string {
	var out []string
	for _, p := range []string{".ssh/authorized_keys", ".ssh/rc", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".gitconfig", ".config/systemd/user", ".local/bin", ".k5login"} {
		out = append(out, "~/"+p)
	}
	return out
}

func credPlant(s *site, target string) Finding {
	p := homeDir() + strings.TrimPrefix(target, "~")
	for _, q := range []string{p, path.Dir(p), homeDir()} {
		if f, ok := s.covered(q); ok {
			return f
		}
	}
	switch modeOf(p) & unix.S_IFMT {
	case unix.S_IFDIR:
		return s.tryWrite(p)
	case unix.S_IFREG:
		return s.openNothing(p, unix.O_WRONLY, unix.S_IFREG)
	case 0:
		// It is not there, or its folder is out of reach; whether it could be
		// made is for the folder to say.
		var st unix.Stat_t
		err := unix.Fstatat(unix.AT_FDCWD, p, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
		if err == unix.ENOENT && modeOf(path.Dir(p))&unix.S_IFMT == unix.S_IFDIR {
			f := s.tryWrite(path.Dir(p))
			f.Evidence = "not there; in its folder: " + f.Evidence
			return f
		}
		return s.pathFinding(p, unix.F_OK, "fstatat", errnoOf(err))
	}
	return s.openNothing(p, unix.O_WRONLY, modeOf(p))
}

func credKeyring(s *site, target string) Finding {
	id := map[string]int{"@s": unix.KEY_SPEC_SESSION_KEYRING, "@u": unix.KEY_SPEC_USER_KEYRING, "@us": unix.KEY_SPEC_USER_SESSION_KEYRING}[target]
	const getKeyringID = 0
	_, _, e := unix.Syscall(unix.SYS_KEYCTL, getKeyringID, uintptr(id), 0)
	f := Finding{Errno: errnoName(e), Syscall: "keyctl", Evidence: sysErr("keyctl(GET_KEYRING_ID, "+target+")", e)}
	switch e {
	case 0:
		f.Outcome, f.Evidence = Reachable, "the keyring has a number"
	case unix.ENOKEY:
		f.Outcome, f.Evidence = Absent, "there is no such keyring"
	default:
		f.Outcome, f.Mechanism = judgeCall(s.facts, e, false)
	}
	return f
}

func credKeys(s *site, _ string) Finding {
	data, err := os.ReadFile("/proc/keys")
	if err != nil {
		return s.pathFinding("/proc/keys", unix.R_OK, "open", errnoOf(err))
	}
	n := strings.Count(string(data), "\n")
	f := Finding{Outcome: Reachable, Evidence: fmt.Sprintf("%d keys are listed", n)}
	if n == 0 {
		f.Outcome = Absent
	}
	return f
}
