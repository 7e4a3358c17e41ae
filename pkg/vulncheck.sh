#!/bin/sh
# vulncheck.sh DB COMMAND: looks for known faults with govulncheck, the COMMAND, in a
# database. Exit: 0 none; 3 there are some; 4 there is no database, and nothing was
# looked for; any other is govulncheck's own.
set -u
db=$1 command=$2
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$command" -db "$db" ./... >"$said" 2>&1
code=$?
cat "$said"
if [ $code -ne 0 ] && [ $code -ne 3 ] && grep -qE '^(govulncheck: )?(creating client|fetching vulnerabilities):' "$said"; then
	echo "vulncheck: no database at $db, so nothing was looked for; VULNDB=file:///folder takes a copy of it" >&2
	exit 4
fi
exit $code
