#!/bin/sh
cp ~/data/input ~/data/output
