#!/bin/sh
printf '%s\n' "$A" "$B" "$C" >env
[ "$S" = "of the solution" ]
