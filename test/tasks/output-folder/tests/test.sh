#!/bin/sh
if [ "$(cat /output/result)" = 42 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
