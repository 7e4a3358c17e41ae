#!/bin/sh
# Runs before a removal or an upgrade, and disables and stops the services only for a
# removal: dpkg then passes "remove", and rpm passes 0.
set -e
case $1 in remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now gfaas-gateway.service gfaas-modeld.service gfaas-tokend.service
	fi
	;;
esac
