package policy_test

import (
	"strings"
	"testing"

	"fence/pkg/policy"
)

func TestLooksSecret_Names(t *testing.T) {
	for _, name := range strings.Fields(`
		HF_TOKEN HUGGING_FACE_HUB_TOKEN GITHUB_TOKEN GH_TOKEN CI_JOB_TOKEN MYTOKEN API_TOKENS TOKEN token2 npm_config__authToken
		SECRET CLIENT_SECRET SECRETS_FILE secret_key_base AZURE_CLIENT_SECRET MYSECRET
		PASSWORD PGPASSWORD MYSQL_PASSWORD DB_PASS DB_PASSWD MYSQL_PWD SSHPASS PGPASSFILE GIT_ASKPASS SSH_ASKPASS KEY_PASSPHRASE
		OPENAI_API_KEY OPENAI_APIKEY openai_api_key WANDB_API_KEY API_KEY_FILE SSH_KEY AWS_ACCESS_KEY_ID PRIVATE_KEY_PATH ACCOUNT_KEYS
		GOOGLE_APPLICATION_CREDENTIALS CREDENTIAL_FILE CREDS SESSION_COOKIE COOKIES JWT SLURM_JWT MYJWT
		SLURM_SACK_KEY SLURM_SACK_JWKS AWS_PROFILE AWS_SESSION_TOKEN aws_region
		AUTH DOCKER_AUTH_CONFIG HTTP_AUTHORIZATION AUTHTOKEN OAUTH OAUTH2_ID BASIC_AUTH MONGOAUTH
		KRB5CCNAME X509_USER_PROXY SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS XAUTHORITY KUBECONFIG NETRC GITHUB_PAT KRB5_KTNAME`) {
		if !policy.LooksSecret(name, "") {
			t.Errorf("%s passes", name)
		}
	}
	for _, name := range strings.Fields(`
		PATH HOME PWD OLDPWD INIT_CWD LANG LC_ALL TERM TZ USER SHELL TMPDIR KEYBOARD KEYMAP XKB_KEYMAP MONKEY MONKEY_ISLAND HOTKEYS KEY
		TOKENIZERS_PARALLELISM MAX_TOKENS MAX_NEW_TOKENS EOS_TOKEN PAD_TOKEN_ID N_TOKENS TOKEN_LIMIT
		AUTHOR GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL AUTHORS AZURE_AUTHORITY_HOST COMPASS BYPASS_CACHE PASSENGER_ROOT SECRETARY COOKIECUTTER_CONFIG
		CUDA_VISIBLE_DEVICES SLURM_JOB_ID SLURM_NODELIST HF_HUB_OFFLINE HF_HOME OMP_NUM_THREADS DISPLAY EDITOR LD_LIBRARY_PATH PYTHONPATH
		PIP_NO_INDEX UV_CACHE_DIR PATTERN SPATIAL PATCH JAVA_HOME http_proxy NO_PROXY PKG_CONFIG_PATH`) {
		if policy.LooksSecret(name, "") {
			t.Errorf("%s does not pass", name)
		}
	}
}

func TestLooksSecret_Values(t *testing.T) {
	tests := []struct {
		name, value string
		want        bool
	}{
		{"U", "http://user:pass@host/", true},
		{"U", "postgres://u:p@db:5432/x", true},
		{"U", "see https://a.example/ and https://u:p@b.example/", true},
		{"U", "https://a.example:443,https://u:p@b.example", true},
		{"U", "http://u:p/w@host", true}, // a password that should have been escaped
		{"U", "redis://:p@host", true},
		{"http_proxy", "u:p@proxy:3128", true},
		{"HTTPS_PROXY", "http://u:p@proxy:3128", true},
		{"DSN", "host=db Password=x", true},
		{"T", "ghp_" + strings.Repeat("a", 36), true},
		{"T", "-----BEGIN OPENSSH PRIVATE KEY-----\nx", true},
		{"T", "eyJ" + strings.Repeat("a", 60), true},
		{"http_proxy", "http://proxy:3128", false},
		{"http_proxy", "proxy:3128", false},
		{"U", "http://host:8080/path@v1", false},
		{"U", "http://host/a:b@c", false},
		{"U", "ssh://git@host:22/x", false},
		{"U", "git@github.com:a/b.git", false},
		{"PS1", `\u@\h:\w\$ `, false},
		{"PATH", "/usr/bin:/opt/pkg@1.2/bin", false},
		{"U", "http://", false},
		{"U", "sk-x", false},
		{"U", "hf_hub is a library of things", false},
		{"U", "", false},
	}
	for _, tt := range tests {
		if got := policy.LooksSecret(tt.name, tt.value); got != tt.want {
			t.Errorf("%s=%s: %v", tt.name, tt.value, got)
		}
	}
}
