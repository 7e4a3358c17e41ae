#!/bin/sh
# inside.sh: checks the installed deb. installed.sh runs it in its container, as root, with
# systemd as the first process.
set -eu
units='gfaas-tokend.service gfaas-modeld.service gfaas-gateway.service'
fail() { echo "inside.sh: $*"; exit 1; }
step() { echo "--- $*"; }
serving() { setpriv --reuid gfaas --regid gfaas --clear-groups env HOME=/var/lib/gfaas "$@"; }

step install
dpkg -i /dist/*.deb
getent group gfaas
dpkg -L gfaas | while read -r file; do if [ ! -d "$file" ]; then echo "$file"; fi; done >/tmp/files
for unit in $units; do
	systemctl -q is-enabled $unit && fail "$unit was enabled by the installation"
	systemctl -q is-active $unit && fail "$unit was started by the installation"
done
for file in /usr/share/man/man1/gfaas.1 /usr/share/bash-completion/completions/gfaas /usr/share/doc/gfaas/docs/sharing.md; do
	[ -f $file ] || fail "no $file"
done

step doctor and run, as root
export XDG_RUNTIME_DIR=/run/root
mkdir -m 700 $XDG_RUNTIME_DIR
gfaas doctor
gfaas run --quota 0.5 --mem 1GiB -- /victim/saturate 1
unset XDG_RUNTIME_DIR

step units
cd /usr/lib/systemd/system
systemd-analyze verify --man=no $units 2>&1 | (! grep .) || fail 'systemd-analyze verify reports the above'
for unit in $units; do
	systemd-analyze security --offline=true --threshold=20 --no-pager $unit >/tmp/security || { cat /tmp/security; fail "the exposure of $unit is above 2.0"; }
	tail -n 1 /tmp/security
done
cd /

step services
systemctl start gfaas-gateway.service gfaas-modeld.service
systemctl is-active $units
serving gfaas apply -f /usr/lib/gfaas/examples/saxpy/function.yaml
for _ in $(seq 600); do
	answer=$(echo '{"n": 4096, "a": 2}' | serving gfaas invoke saxpy 2>/dev/null) && break
	sleep 0.1
done
echo "$answer"
[ "$answer" = '{"n":4096,"a":2,"batch":1,"launches":5,"sum":1982400}' ] || fail 'the answer is wrong'
serving gfaas ps
serving gfaas-modeld ls
[ "$(grep -Ec '^(Cap(Inh|Prm|Eff|Bnd|Amb):\s*0+|NoNewPrivs:\s*1)$' "/proc/$(pgrep -x saxpy)/status")" = 6 ] || fail 'the function has capabilities'

step kill the gateway
instance=$(pgrep -x saxpy)
gateway=$(systemctl show -P MainPID gfaas-gateway.service)
kill -KILL "$gateway"
for _ in $(seq 600); do
	sleep 0.1
	systemctl -q is-active gfaas-gateway.service && [ "$(systemctl show -P MainPID gfaas-gateway.service)" != "$gateway" ] && break
done
echo '{}' | serving gfaas invoke saxpy
[ "$(pgrep -x saxpy)" = "$instance" ] || fail 'the instance did not survive the kill of its gateway'
systemctl reload gfaas-gateway.service gfaas-tokend.service
systemctl is-active $units

step remove
dpkg -r gfaas
while read -r file; do
	[ ! -e "$file" ] && [ ! -L "$file" ] || fail "$file still exists after removal"
done </tmp/files
[ ! -e /usr/lib/gfaas ] || fail '/usr/lib/gfaas still exists after removal'
if pgrep -u gfaas; then fail 'the processes above still run after removal'; fi
serving test -f /var/lib/gfaas/.local/state/gfaas/state.db || fail 'removal deleted the functions'
