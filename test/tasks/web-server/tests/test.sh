#!/bin/sh
if [ "$(wget -q -O - http://127.0.0.1:8080/status)" = "it works" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
