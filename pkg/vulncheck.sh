#!/bin/sh
# vulncheck.sh DB COMMAND: looks up known vulnerabilities in the database DB with COMMAND,
# which is govulncheck. Exit status: 0 none found, 3 some found, 4 the database cannot be
# read; any other status is govulncheck's own.
set -u
db=$1 command=$2
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$command" -db "$db" ./... >"$said" 2>&1
code=$?
cat "$said"
if [ $code -ne 0 ] && [ $code -ne 3 ] && grep -qE '^(govulncheck: )?(creating client|fetching vulnerabilities):' "$said"; then
	echo "vulncheck: cannot read the database at $db, so nothing was checked; VULNDB=file:///FOLDER uses a copy of it" >&2
	exit 4
fi
exit $code
