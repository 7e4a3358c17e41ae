#!/bin/sh
# After the files are there, at first or anew: the user of the services, and those that
# run go on with the new programs. None is started that was not running.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers gfaas.conf
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart gfaas-tokend.service gfaas-modeld.service gfaas-gateway.service || true # the journal has why
fi
