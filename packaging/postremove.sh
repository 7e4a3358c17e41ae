#!/bin/sh
# Runs after a removal. The user gfaas and /var/lib/gfaas, which holds the functions, remain.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
