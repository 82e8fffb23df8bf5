#!/bin/sh
mkdir new
echo x >new/file
