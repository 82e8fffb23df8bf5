#!/bin/sh
if [ -f /app/out/keep.txt ] && [ -f /app/out/drop.tmp ] && [ -f /logs/artifacts/report.txt ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
