#!/bin/sh
# The umask of who started it all (0002 on many clusters) is to be seen nowhere.
modes() { stat -c '%a %n' "$@"; }
modes /app/new /app/new/file /app/given /app/given/data /app/given/run.sh /tests/data /solution 2>&1
want='755 /app/new
644 /app/new/file
755 /app/given
644 /app/given/data
755 /app/given/run.sh
644 /tests/data'
if [ "$(umask)" = 0022 ] && [ "$(modes /app/new /app/new/file /app/given /app/given/data /app/given/run.sh /tests/data)" = "$want" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
