#!/bin/sh
cat /app/tty /app/shm
case $(cat /app/tty) in
/dev/pts/*) pty=yes ;;
*) pty=no ;;
esac
if [ $pty = yes ] && [ "$(cat /app/shm)" = "shared 1048576" ] && echo x >/dev/shm/of-the-tests; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
