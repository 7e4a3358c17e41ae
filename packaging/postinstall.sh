#!/bin/sh
# Runs after an installation or upgrade: creates the services' user, and restarts the services
# that are running. It starts no others.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers gfaas.conf
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart gfaas-tokend.service gfaas-modeld.service gfaas-gateway.service || true # the journal has the reason
fi
