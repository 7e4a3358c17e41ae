#!/bin/sh
# installed.sh BUILD: installs the deb of BUILD/dist in a container, runs its services there,
# and removes it. The container's root consists of this machine's files of Debian's essential
# packages and systemd; no image is pulled.
#
# Without Docker, dpkg or systemd, it prints a message and succeeds, or fails if CI is set.
set -eu
build=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
skip() {
	echo "installed.sh: SKIPPED: $*" >&2
	[ -z "${CI-}" ] || exit 1
	exit 0
}
command -v dpkg >/dev/null || skip 'dpkg is not installed'
command -v systemd-analyze >/dev/null || skip 'systemd is not installed'
docker info >/dev/null 2>&1 || skip 'no Docker Engine answers'

work=$(mktemp -d)
box=gfaas-installed-$$
trap 'docker rm -f $box >/dev/null 2>&1 || true; docker rmi -f $box >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Files of the packages, and the libraries that their programs link.
essential=$(dpkg-query -W -f '${Package} ${Essential} ${Priority}\n' | awk '$2 == "yes" || $3 == "required" { print $1 }')
dpkg -L $essential libc6 procps systemd | grep -v '^/usr/share/' >"$work/files"
while read -r file; do
	if [ -f "$file" ] && [ -x "$file" ]; then echo "$file"; fi
done <"$work/files" | xargs ldd 2>/dev/null | sed -n 's,^.*\t\(.* => \)\?\(/[^ ]*\) .*,\2,p' | sort -u >"$work/libraries"
{
	cat "$work/files" "$work/libraries"
	xargs readlink -f <"$work/libraries"
	printf '%s\n' /bin /sbin /lib /lib64 /tmp /etc/passwd /etc/group /etc/ld.so.cache /etc/nsswitch.conf /etc/alternatives/*
	find /var/lib/dpkg ! -name '*.md5sums'
} | sed -E 's,^/(s?bin|lib|lib64)/,/usr/\1/,; s,^/,,; /^\.?$/d' | sort -u >"$work/wanted"
(cd / && while read -r file; do [ ! -e "$file" ] || echo "$file"; done) <"$work/wanted" >"$work/list"
tar -C / --no-recursion -T "$work/list" -cf - | docker import - $box >/dev/null

# systemd, the first process, needs CAP_SYS_ADMIN for its mounts and its own cgroup namespace.
docker run -d --name $box --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
	--cgroupns=private --tmpfs /run --tmpfs /tmp --shm-size 1g --env container=docker \
	-v "$build/dist:/dist:ro" -v "$build/victim:/victim:ro" -v "$here/inside.sh:/inside.sh:ro" $box \
	sh -c 'if [ -e /sys/fs/cgroup/cgroup.controllers ]; then mount -o remount,rw /sys/fs/cgroup; fi; exec /lib/systemd/systemd --unit=basic.target' >/dev/null
for _ in $(seq 600); do
	docker exec $box systemctl is-system-running 2>/dev/null | grep -q 'running\|degraded' && break
	sleep 0.2
done
docker exec $box sh /inside.sh || {
	docker exec $box journalctl --no-pager -n 100 | grep -v 'compat systemd cgroup'
	exit 1
}

if ! command -v rpm >/dev/null || [ "$(id -u)" != 0 ]; then
	echo 'installed.sh: rpm is not installed, or not root: THE RPM IS NOT CHECKED' >&2
	exit 0
fi
rpm --root "$work/rpm" --nodeps --noscripts --nosignature -i "$build"/dist/*.rpm 2>"$work/log" || { cat "$work/log"; exit 1; }
rpm --root "$work/rpm" --nodeps -V gfaas
dpkg -x "$build"/dist/*.deb "$work/deb"
diff -r --no-dereference "$work/deb/usr" "$work/rpm/usr"
echo 'The rpm has the same files.'
