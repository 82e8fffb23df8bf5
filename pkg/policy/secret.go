package policy

import (
	"slices"
	"strings"
)

// LooksSecret reports whether a variable looks like a credential, by its name
// or by a value that carries one. It errs to yes: a variable dropped by
// mistake is named in the status line, a token that leaks is not.
func LooksSecret(name, value string) bool { return secretName(name) || secretValue(name, value) }

// Names that give no hint of what they open.
var secretNames = []string{
	"KRB5CCNAME", "KRB5_KTNAME", "KRB5_CLIENT_KTNAME", "X509_USER_PROXY", "X509_USER_CERT", "SSH_AUTH_SOCK",
	"SSH_AGENT_PID", "GPG_AGENT_INFO", "GNUPGHOME", "KUBECONFIG", "NETRC", "DBUS_SESSION_BUS_ADDRESS",
	"DBUS_SYSTEM_BUS_ADDRESS", "XAUTHORITY", "SSHPASS", "PGPASSFILE",
}

// Words that make a name secret wherever they stand; words are split at _.
var secretWords = []string{
	"PASS", "CREDS", "CRED", "COOKIE", "COOKIES", "JWT", "OAUTH", "BEARER", "KEYTAB", "XAUTH", "PRIVKEY",
	"ACCESSKEY", "PRIVATEKEY",
}

// Words that make KEY secret when it follows them ("API_KEY_FILE").
var keyKinds = []string{
	"API", "ACCESS", "PRIVATE", "SIGNING", "ENCRYPTION", "SSH", "MASTER", "ACCOUNT", "STORAGE", "DEPLOY",
	"SERVICE",
}

// Words beside which a TOKEN is a piece of text ("MAX_TOKENS").
var tokenCounts = []string{
	"MAX", "MIN", "NUM", "N", "TOTAL", "COUNT", "LIMIT", "LEN", "LENGTH", "EOS", "BOS", "PAD", "UNK", "MASK",
	"NEW", "INPUT", "OUTPUT",
}

// Owners of a password called PWD; PWD alone is a folder.
var pwdOwners = []string{
	"DB", "MYSQL", "SQL", "PG", "USER", "ADMIN", "ROOT", "FTP", "SMTP", "LDAP", "REDIS", "MONGO",
}

func secretName(name string) bool {
	up := strings.ToUpper(name)
	if slices.Contains(secretNames, up) || strings.HasPrefix(up, "AWS_") || strings.HasPrefix(up, "SLURM_SACK_") {
		return true
	}
	words := strings.FieldsFunc(up, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
	at := func(i int) string {
		if i < 0 || i >= len(words) {
			return ""
		}
		return words[i]
	}
	for i := range words {
		words[i] = strings.TrimRight(words[i], "0123456789")
	}
	for i, w := range words {
		switch {
		case slices.Contains(secretWords, w),
			strings.Contains(w, "PASSW"), strings.Contains(w, "PASSPHRASE"), strings.HasSuffix(w, "ASKPASS"),
			strings.Contains(w, "SECRET") && !strings.Contains(w, "SECRETAR"),
			strings.Contains(w, "CREDENTIAL"), strings.Contains(w, "APIKEY"),
			strings.HasPrefix(w, "AUTH") && (!strings.HasPrefix(w, "AUTHOR") || strings.HasPrefix(w, "AUTHORIZ") || strings.HasPrefix(w, "AUTHORIS")),
			strings.HasSuffix(w, "AUTH"), strings.HasSuffix(w, "JWT"),
			(w == "KEY" || w == "KEYS") && (i == len(words)-1 && i > 0 || slices.Contains(keyKinds, at(i-1))),
			w == "PAT" && i == len(words)-1 && i > 0,
			w == "PWD" && slices.Contains(pwdOwners, at(i-1)),
			(strings.HasSuffix(w, "TOKEN") || strings.HasSuffix(w, "TOKENS")) && !slices.Contains(tokenCounts, at(i-1)) && !slices.Contains(tokenCounts, at(i+1)):
			return true
		}
	}
	return false
}

// Beginnings of tokens that services hand out, with the least length of one.
var tokenShapes = []struct {
	prefix string
	length int
}{{"ghp_", 30}, {"gho_", 30}, {"ghs_", 30}, {"ghu_", 30}, {"github_pat_", 30}, {"glpat-", 20}, {"hf_", 20}, {"sk-", 20},
	{"xoxb-", 20}, {"xoxp-", 20}, {"AKIA", 20}, {"ASIA", 20}, {"eyJ", 40}, {"-----BEGIN", 20}}

func secretValue(name, value string) bool {
	if len(value) < 3 {
		return false
	}
	for _, t := range tokenShapes {
		if len(value) >= t.length && strings.HasPrefix(value, t.prefix) && (t.prefix[0] == '-' || !strings.ContainsAny(value, " /")) {
			return true
		}
	}
	if low := strings.ToLower(value); strings.Contains(low, "password=") || strings.Contains(low, "passwd=") {
		return true
	}
	// Programs take a proxy without "http://" as well.
	if strings.HasSuffix(strings.ToUpper(name), "_PROXY") && userinfo(value) {
		return true
	}
	for {
		_, rest, found := strings.Cut(value, "://")
		if !found {
			return false
		}
		if userinfo(rest) {
			return true
		}
		value = rest
	}
}

// userinfo reports whether s, what follows "://", begins with user:password@.
// A password may hold a "/" that nobody escaped; a port has digits only.
func userinfo(s string) bool {
	if i := strings.IndexAny(s, " \t\n\"'<>,;"); i >= 0 {
		s = s[:i]
	}
	if i := strings.Index(s, "://"); i >= 0 {
		s = s[:i]
	}
	user, rest, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(user, "/?#") {
		return false
	}
	port, _, _ := strings.Cut(rest, "/")
	if strings.IndexByte(port, '@') < 0 && port != "" && strings.Trim(port, "0123456789") == "" {
		return false
	}
	return strings.IndexByte(rest, '@') > 0
}

// Keeps reports whether the variable name passes by its name; image says which
// names the image itself set. A name that looks like a credential never
// passes. The caller still asks LooksSecret about the value.
func (e Environment) Keeps(name string, image func(string) bool) bool {
	if secretName(name) {
		return false
	}
	for _, k := range e.Keep {
		prefix, pattern := strings.CutSuffix(k, "*")
		switch {
		case k == SetImage:
			if image != nil && image(name) {
				return true
			}
		case pattern && prefix != "" && strings.HasPrefix(name, prefix), k == name:
			return true
		}
	}
	return false
}
