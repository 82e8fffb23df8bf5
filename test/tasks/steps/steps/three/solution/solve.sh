#!/bin/sh
rm two
