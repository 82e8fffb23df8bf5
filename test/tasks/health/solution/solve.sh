#!/bin/sh
cp /srv/ready .
