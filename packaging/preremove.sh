#!/bin/sh
# Before the files go for good, which dpkg says as "remove" and rpm as 0.
set -e
case $1 in remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now gfaas-gateway.service gfaas-modeld.service gfaas-tokend.service
	fi
	;;
esac
