#!/bin/sh
if [ -f /app/one ] && [ ! -e /app/two ]; then
    echo 0.5 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
