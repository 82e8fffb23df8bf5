#!/bin/sh
touch it
