#!/bin/bash
echo 'set up' >>given
