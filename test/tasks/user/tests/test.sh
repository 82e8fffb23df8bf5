#!/bin/sh
id
ls -ln /home/app
if [ "$(id -u)" = 0 ] && [ "$(cat /home/app/collected)" = 0 ] && [ "$(cat /home/app/who)" = "app 1234 /home/app" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
