#!/bin/sh
cp given two
