#!/bin/sh
pwd >answer
