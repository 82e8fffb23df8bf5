package wanted

import (
	"regexp"
	"strings"

	"fence/pkg/wheel"
)

// parsed are the arguments of a command that installs.
type parsed struct {
	words       []argument // that are no options
	rest        []argument // what follows the last of them, if reading ended there
	files       []argument // of requirements
	constraints []argument
	with, from  []argument
	noIndex     bool
	set         wheel.Set
	err         error // why they are not understood
}

// flags are the options of a tool: each means something here (see apply), or
// "value" takes one that means nothing, or "" takes none.
type flags map[string]string

func tables(list string, meaning string, into flags) {
	for _, f := range strings.Fields(list) {
		into[f] = meaning
	}
}

var pipFlags, uvFlags, pipxFlags = func() (pip, uv, pipx flags) {
	pip, uv, pipx = flags{}, flags{}, flags{}
	// pip 26's install, download and wheel, and its general options.
	tables(`-U --upgrade -q --quiet -v --verbose -I --ignore-installed --user --no-cache-dir --break-system-packages --no-build-isolation
		--use-pep517 --no-use-pep517 --require-hashes --prefer-binary --force-reinstall --disable-pip-version-check --no-input --no-color
		--no-warn-script-location --no-warn-conflicts --no-compile --compile --isolated --require-virtualenv --dry-run --check-build-dependencies
		--no-clean --no-python-version-warning --ignore-requires-python --debug --no-require-hashes --no-verify`, "", pip)
	tables(`-t --target --prefix --root --src -b --build --platform --abi --implementation --only-binary --no-binary --progress-bar --cache-dir
		--timeout --retries --resume-retries --trusted-host --proxy --log --exists-action --cert --client-cert --root-user-action --report
		--upgrade-strategy --python -C --config-settings --config-setting --global-option --build-option --install-option --use-feature --use-deprecated
		--keyring-provider -d --dest -w --wheel-dir --uploaded-prior-to`, "value", pip)
	tables("--no-deps", "no-deps", pip)
	tables("--pre", "pre", pip)
	tables("--no-index", "no-index", pip)
	tables("-r --requirement", "file", pip)
	tables("-c --constraint", "constraint", pip)
	tables("-e --editable", "editable", pip)
	tables("-i --index-url --pypi-url", "index", pip)
	tables("--extra-index-url", "extra", pip)
	tables("-f --find-links", "links", pip)
	tables("--python-version", "python", pip)

	// uv 0.13's pip install, add, tool run, tool install and run.
	tables(`-U --upgrade -q --quiet -v --verbose --system --no-system --break-system-packages --no-cache -n --offline --reinstall --force-reinstall --strict
		--no-strict --all-extras --no-project --no-workspace --isolated --refresh --no-progress --native-tls --managed-python --no-managed-python --no-config
		--no-python-downloads --dev --frozen --locked --no-sync --active --exact --no-dev --bare --no-build --no-build-isolation --compile-bytecode
		--no-sources --require-hashes --no-verify-hashes --dry-run --user --force --no-default-groups --all-groups --no-editable --system-certs
		--no-env-file --show-resolution --raw --script-not --workspace`, "", uv)
	tables(`-t --target --prefix --index-strategy --keyring-provider --resolution --link-mode --fork-strategy --exclude-newer --config-setting -C
		--no-binary --only-binary --no-build-package --no-binary-package --upgrade-package -P --reinstall-package --refresh-package --cache-dir --color --directory
		--project --config-file --allow-insecure-host --extra --group --only-group --no-group --env-file --python-platform --torch-backend
		--optional --package --branch --tag --rev --overrides --override --build-constraints -b --no-extra --bounds --marker -m`, "value", uv)
	tables("--no-deps", "no-deps", uv)
	tables("--pre", "pre", uv)
	tables("--prerelease", "prerelease", uv)
	tables("--no-index", "no-index", uv)
	tables("-r --requirements --requirement --with-requirements", "file", uv)
	tables("-c --constraints --constraint", "constraint", uv)
	tables("-e --editable --with-editable --script -s", "editable", uv)
	tables("-i --index-url --default-index", "index", uv)
	tables("--extra-index-url --index", "extra", uv)
	tables("-f --find-links", "links", uv)
	tables("-p --python --python-version", "python", uv)
	tables("-w --with", "with", uv)
	tables("--from", "from", uv)

	tables("-q --quiet -v --verbose -f --force --global --include-deps --system-site-packages --editable --no-cache --fetch-missing-python", "", pipx)
	tables("--suffix --preinstall --pip-args --path --backend", "value", pipx)
	tables("--python", "python", pipx)
	tables("-i --index-url", "index", pipx)
	tables("--spec", "from", pipx)
	tables("--with", "with", pipx)
	return pip, uv, pipx
}()

// options reads arguments until it has as many words as most says; -1 is all
// of them, 0 ends before the first. An option that the tool is not known to
// have is an error: whether the next word is its value cannot be told.
func (c command) options(args []argument, known flags, most int) (p parsed) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a.err == nil && a.text == "--" {
			if most < 0 {
				p.words = append(p.words, args[i+1:]...)
			}
			return p
		}
		if a.err != nil || len(a.text) < 2 || a.text[0] != '-' {
			if most == 0 {
				return p
			}
			p.words, p.rest = append(p.words, a), args[i+1:]
			if len(p.words) == most {
				return p
			}
			continue
		}
		name, value, hasValue := a.text, "", false
		if strings.HasPrefix(name, "--") {
			name, value, hasValue = strings.Cut(name, "=")
		} else if len(name) > 2 {
			name, value, hasValue = name[:2], strings.TrimPrefix(name[2:], "="), true
		}
		meaning, ok := known[name]
		switch {
		case !ok:
			p.fail("the option %s is not known here", name)
			return p
		case meaning == "" && hasValue && !strings.HasPrefix(name, "--"):
			args = append([]argument{{text: "-" + value}}, args[i+1:]...) // -qU is -q -U
			i = -1
			continue
		case meaning == "":
			continue
		case meaning == "no-deps":
			p.set.NoDeps = true
			continue
		case meaning == "pre":
			p.set.Pre = true
			continue
		case meaning == "no-index":
			p.noIndex = true
			continue
		}
		v := argument{text: value}
		if !hasValue {
			if i++; i == len(args) {
				p.fail("the option %s lacks its value", name)
				return p
			}
			v = args[i]
		}
		c.apply(&p, name, meaning, v)
	}
	return p
}

var pythonRequest = regexp.MustCompile(`^(?:(?:c?python|cp)[@-]?)?(3\.\d+)(?:\.\d+)?$`)

func (c command) apply(p *parsed, name, meaning string, v argument) {
	switch meaning {
	case "value":
		return
	case "file":
		p.files = append(p.files, v)
		return
	case "constraint":
		p.constraints = append(p.constraints, v)
		return
	}
	if v.err != nil {
		p.fail("the option %s: %w", name, v.err)
		return
	}
	switch meaning {
	case "editable":
		c.skip("%s %s is of the container: what it needs is not known here", name, v.text)
	case "index":
		p.set.Index = v.text
	case "extra":
		_, u, ok := strings.Cut(v.text, "=") // uv's NAME=URL
		if !ok || isWeb(v.text) {
			u = v.text
		}
		p.set.ExtraIndexes = append(p.set.ExtraIndexes, u)
	case "links":
		p.set.FindLinks = append(p.set.FindLinks, v.text)
	case "prerelease":
		p.set.Pre = v.text == "allow"
	case "python":
		if m := pythonRequest.FindStringSubmatch(v.text); m != nil {
			p.set.Python = m[1]
		} else if !strings.Contains(v.text, "/") && v.text != "python" && v.text != "python3" {
			p.fail("%s %s: it is not known which Python that is", name, v.text)
		}
	case "with", "from":
		list := &p.with
		if meaning == "from" {
			list = &p.from
		}
		for text := range strings.SplitSeq(v.text, ",") {
			// A comma also stands within a requirement: pytest>=8,<9.
			if n := len(*list); n > 0 && strings.ContainsAny(text[:min(1, len(text))], "=<>!~") {
				(*list)[n-1].text += "," + text
				continue
			}
			*list = append(*list, argument{text: text})
		}
	}
}
