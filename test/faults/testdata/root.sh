#!/bin/bash
# root.sh KIND ROOT STAGE LIMIT-NS USER UID GID HOME PLANTED...
#
# Run as root in a mount namespace of its own: makes a root in the folder ROOT, says "ready", and stays in it.
#
#   container  Apptainer's files, everything USER's, and the site's folder /proj bound into it
#   node       a small bare node: the decoys, a home, /tmp with what others left there
#
# It is the same every time, unlike the machine, where other programs come and go.
set -euo pipefail
kind=$1 root=$2 stage=$3 limit=$4 user=$5 uid=$6 gid=$7 home=$8
shift 8
mount -t tmpfs -o mode=755 tests "$root"
cd "$root"
mkdir -p usr etc proc sys dev tmp var/tmp proj opt run root .old
ln -s usr/bin bin
ln -s usr/sbin sbin
ln -s usr/lib lib
[[ ! -d /usr/lib64 ]] || ln -s usr/lib64 lib64
echo "$user:x:$uid:$gid::$home:/bin/sh" >etc/passwd
echo "team:x:$gid:" >etc/group
cp "$limit" opt/limit-ns
machine() { # what a root has of the machine
	for d in usr proc sys dev; do mount --rbind "/$d" "$d"; done
}

case $kind in
container)
	mkdir -p .singularity.d/{env,actions} .fence
	echo '# sourced before every command' >.singularity.d/env/90-environment.sh
	for name in exec run shell; do
		printf '#!/bin/sh\nexec "$@"\n' >".singularity.d/actions/$name"
		ln -s ".singularity.d/actions/$name" ".$name"
	done
	ln -s .singularity.d/env/90-environment.sh environment
	ln -s .singularity.d/actions/run singularity
	cp "$stage/bin/fence" .fence/fence
	echo '# a tool' >.fence/tool
	cp "$stage/bin/checker" opt/checker
	chown -Rh "$uid:$gid" . # before the machine's own folders are in it
	machine
	mount --rbind /proj proj
	;;
node)
	machine
	mkdir -p ".$stage" ".$home"
	cp -a "$stage"/{bin,decoy,fake,work} ".$stage"
	echo 'canary: not a password' >".$home/.netrc"
	chown -R "$uid:$gid" ".$stage" ".$home"
	for p; do
		install -o "$uid" -g "$gid" -m 644 /dev/null ".$p"
	done
	;;
esac
chmod 1777 tmp var/tmp

pivot_root . .old
umount -l /.old
rmdir /.old
# As on most nodes: a fence whose mounts are not made private would show it.
mount --make-rshared /
echo ready
exec sleep 3600
