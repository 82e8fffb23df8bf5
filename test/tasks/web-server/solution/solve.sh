#!/bin/sh
mkdir www && echo 'it works' >www/status
httpd -p 127.0.0.1:8080 -h /app/www
