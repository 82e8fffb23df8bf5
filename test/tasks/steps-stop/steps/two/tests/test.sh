#!/bin/sh
if [ -f /app/one ]; then
    echo 0.25 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
