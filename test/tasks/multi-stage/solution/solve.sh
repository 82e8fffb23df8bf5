#!/bin/sh
greet >greeting
