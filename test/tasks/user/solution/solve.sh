#!/bin/sh
echo "$(id -un) $(id -u) $HOME" >~/who
