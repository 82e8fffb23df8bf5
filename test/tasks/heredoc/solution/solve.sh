#!/bin/sh
python3 add.py <numbers.txt >sum.txt
