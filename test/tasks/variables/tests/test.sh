#!/bin/sh
if [ "$(cat /app/env)" = "of the image
of the task
by default" ] && [ "$B" = "of the verifier" ] && [ "$S" = "" ] && [ "$A" = "of the image" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
