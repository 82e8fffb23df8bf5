#!/bin/sh
mkdir -p out/folder
echo keep >out/keep.txt
echo drop >out/drop.tmp
ln -s /etc/passwd out/link
echo report >/logs/artifacts/report.txt
