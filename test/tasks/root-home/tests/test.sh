#!/bin/sh
if [ "$(cat /root/data/output)" = "of the image" ] && [ -f /root/.profile-of-image ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
