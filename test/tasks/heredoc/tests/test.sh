#!/bin/sh
if [ "$(cat /app/sum.txt)" = 60 ] && [ "$(cat /app/kinds)" = '$HOME unexpanded
/app expanded
made by python
made by a script
copied' ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
