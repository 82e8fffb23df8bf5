#!/bin/sh
# Stands for curl and wget where a grader runs without a network. It hands over
# an installer of the uv beside it for the addresses of uv's own, and is the
# real program for anything else.
name=${0##*/}
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

url= others= out= next=
for arg; do
	if [ -n "$next" ]; then
		[ "$next" = skip ] || out=$arg
		next=
		continue
	fi
	case $name:$arg in
	curl:--proto | curl:--retry | curl:--retry-delay | curl:--max-time | curl:-m | curl:--connect-timeout | curl:--retry-max-time) next=skip ;;
	wget:-t | wget:-T | wget:--tries | wget:--timeout) next=skip ;;
	curl:-o | curl:--output | wget:-O | wget:--output-document) next=out ;;
	curl:--output=* | wget:--output-document=*) out=${arg#*=} ;;
	curl:--remote-name) out=install.sh ;;
	curl:--*) ;;
	curl:-*o) next=out ;; # -LsSfo FILE
	wget:-qO* | wget:-nvO*) out=${arg#*O}; [ -n "$out" ] || next=out ;;
	wget:-O?*) out=${arg#-O} ;;
	curl:-*O) out=install.sh ;;
	*:-*) ;;
	*:https://astral.sh/uv/install.sh | *:https://astral.sh/uv/[0-9]*/install.sh | *:astral.sh/uv/install.sh | \
		*:https://github.com/astral-sh/uv/releases/*/uv-installer.sh)
		[ -z "$url" ] || others=yes
		url=$arg
		;;
	*) others=yes ;;
	esac
done

if [ -z "$url" ] || [ -n "$others" ]; then
	# The next of that name in PATH that is not this one.
	rest=$PATH:
	while [ -n "$rest" ]; do
		dir=${rest%%:*}
		rest=${rest#*:}
		[ -n "$dir" ] && [ -x "$dir/$name" ] && [ ! -d "$dir/$name" ] || continue
		[ "$(CDPATH= cd -- "$dir" && pwd)" != "$here" ] || continue
		exec "$dir/$name" "$@"
	done
	echo "$name: this grader has no network, and $name here knows the installer of uv only: $*" >&2
	exit 6
fi

quoted() { # for a shell, in single quotes
	s=$1 q=
	while case $s in *\'*) ;; *) false ;; esac; do
		q=$q${s%%\'*}"'\\''"
		s=${s#*\'}
	done
	printf "'%s'" "$q$s"
}

installer() {
	cat <<END
#!/bin/sh
# Installs the uv of this grader's folder, as uv's own installer does: into
# UV_INSTALL_DIR, XDG_BIN_HOME or ~/.local/bin, with a file env there.
set -eu
from=$(quoted "$here")
END
	cat <<'END'
dir=${UV_INSTALL_DIR:-${XDG_BIN_HOME:-${HOME:?it is not set, and uv is installed there}/.local/bin}}
mkdir -p "$dir"
rm -rf "$dir/uv" "$dir/uvx" "$dir/env" # whatever somebody has put there
for program in uv uvx; do
	ln -s "$from/$program" "$dir/$program"
done
cat >"$dir/env" <<ENV
#!/bin/sh
case ":\${PATH}:" in
*:"$dir":*) ;;
*) export PATH="$dir:\$PATH" ;;
esac
ENV
echo "installed $("$from/uv" --version) of $from to $dir" >&2
END
}

if [ "$name" = wget ] && [ -z "$out" ]; then
	out=${url##*/}
fi
if [ -z "$out" ] || [ "$out" = - ]; then
	installer
else
	installer >"$out"
fi
