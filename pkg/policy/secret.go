package policy

import (
	"slices"
	"strings"
)

// LooksSecret reports whether a variable looks like a credential, by its name
// or by a value that carries one. It errs to yes: a variable dropped by
// mistake is named in the status line, a token that leaks is not.
func LooksSecret(name, value string) bool { return secretName(name) || secretValue(name, value) }

var (
	// Names that give no hint of what they open.
	secretNames = []string{"KRB5CCNAME", "KRB5_KTNAME", "KRB5_CLIENT_KTNAME", "X509_USER_PROXY", "X509_USER_CERT", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO",
		"GNUPGHOME", "KUBECONFIG", "NETRC", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "XAUTHORITY", "SSHPASS", "PGPASSFILE"}
	// Words that make a name secret wherever they stand; words are letters.
	secretWords = []string{"PASS", "CREDS", "CRED", "COOKIE", "COOKIES", "JWT", "OAUTH", "BEARER", "KEYTAB", "XAUTH", "PRIVKEY", "ACCESSKEY", "PRIVATEKEY"}
	// Words that make KEY secret when it follows them ("API_KEY_FILE").
	keyKinds = []string{"API", "ACCESS", "PRIVATE", "SIGNING", "ENCRYPTION", "SSH", "MASTER", "ACCOUNT", "STORAGE", "DEPLOY", "SERVICE"}
	// Words beside which a TOKEN is a piece of text ("MAX_TOKENS").
	tokenCounts = []string{"MAX", "MIN", "NUM", "N", "TOTAL", "COUNT", "LIMIT", "LEN", "LENGTH", "EOS", "BOS", "PAD", "UNK", "MASK", "NEW", "INPUT", "OUTPUT"}
	// Owners of a password called PWD; PWD alone is a folder.
	pwdOwners = []string{"DB", "MYSQL", "SQL", "PG", "USER", "ADMIN", "ROOT", "FTP", "SMTP", "LDAP", "REDIS", "MONGO"}
	// Beginnings of tokens that services hand out.
	tokenPrefixes = []string{"ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "hf_", "sk-", "xoxb-", "xoxp-", "AKIA", "ASIA", "eyJ"}
)

func secretName(name string) bool {
	up := strings.ToUpper(name)
	if slices.Contains(secretNames, up) || strings.HasPrefix(up, "AWS_") || strings.HasPrefix(up, "SLURM_SACK_") {
		return true
	}
	words := strings.FieldsFunc(up, func(r rune) bool { return r < 'A' || r > 'Z' })
	before := ""
	for i, w := range words {
		after, last := "", i == len(words)-1
		if !last {
			after = words[i+1]
		}
		switch {
		case slices.Contains(secretWords, w),
			strings.Contains(w, "PASSW"), strings.Contains(w, "PASSPHRASE"), strings.HasSuffix(w, "ASKPASS"),
			strings.Contains(w, "SECRET") && !strings.Contains(w, "SECRETAR"),
			strings.Contains(w, "CREDENTIAL"), strings.Contains(w, "APIKEY"),
			strings.HasPrefix(w, "AUTH") && (!strings.HasPrefix(w, "AUTHOR") || strings.HasPrefix(w, "AUTHORIZ") || strings.HasPrefix(w, "AUTHORIS")),
			strings.HasSuffix(w, "AUTH"), strings.HasSuffix(w, "JWT"),
			(w == "KEY" || w == "KEYS") && (last && i > 0 || slices.Contains(keyKinds, before)),
			w == "PAT" && last && i > 0,
			w == "PWD" && slices.Contains(pwdOwners, before),
			strings.HasSuffix(strings.TrimSuffix(w, "S"), "TOKEN") && !slices.Contains(tokenCounts, before) && !slices.Contains(tokenCounts, after):
			return true
		}
		before = w
	}
	return false
}

func secretValue(name, value string) bool {
	token := len(value) >= 20 && !strings.ContainsAny(value, " /")
	if token && slices.ContainsFunc(tokenPrefixes, func(p string) bool { return strings.HasPrefix(value, p) }) {
		return true
	}
	low := strings.ToLower(value)
	// Programs take a proxy without "http://" as well.
	if strings.Contains(low, "password=") || strings.Contains(low, "passwd=") || strings.HasPrefix(value, "-----BEGIN") ||
		strings.HasSuffix(strings.ToUpper(name), "_PROXY") && userinfo(value) {
		return true
	}
	for _, rest, found := strings.Cut(value, "://"); found; _, rest, found = strings.Cut(rest, "://") {
		if userinfo(rest) {
			return true
		}
	}
	return false
}

// userinfo reports whether s, what follows "://", begins with user:password@.
// A password may hold a "/" that nobody escaped; a port has digits only.
func userinfo(s string) bool {
	if i := strings.IndexAny(s, " \t\n\"'<>,;"); i >= 0 {
		s = s[:i]
	}
	s, _, _ = strings.Cut(s, "://")
	user, rest, ok := strings.Cut(s, ":")
	port, _, _ := strings.Cut(rest, "/")
	if !ok || strings.ContainsAny(user, "/?#") || port != "" && strings.Trim(port, "0123456789") == "" {
		return false
	}
	return strings.IndexByte(rest, '@') > 0
}

// Keeps reports whether the variable name passes by its name; image says which
// names the image itself set. A name that looks like a credential never
// passes. The caller still asks LooksSecret about the value.
func (e Environment) Keeps(name string, image func(string) bool) bool {
	for _, k := range e.Keep {
		prefix, pattern := strings.CutSuffix(k, "*")
		if k == name || pattern && prefix != "" && strings.HasPrefix(name, prefix) || k == SetImage && image != nil && image(name) {
			return !secretName(name)
		}
	}
	return false
}
