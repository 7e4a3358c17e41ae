#!/usr/bin/env bash
# fuzz.sh PACKAGE TARGET TIME: fuzzes one target for so long.
#
# Where the processors are busy Go may call it a failure that the time is up
# (go.dev/issue/75804, mended in Go 1.27): the target fails with the words
# "context deadline exceeded" and nothing else. That is the end of a run that
# found nothing. A finding is never told so: it names the line that failed and
# the file that the input was written to.
set -u
package=$1 target=$2 time=$3
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"${GO:-go}" test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" = 0 ] && exit 0

time_is_up="--- FAIL: $target \([0-9.]+s\)
    context deadline exceeded
FAIL
exit status 1
FAIL	[^	]+	[0-9.]+s"
if [[ $(grep -vE '^(fuzz|go): ' "$log") =~ ^$time_is_up$ ]]; then
  echo "fuzz.sh: $target: the time is up; nothing was found"
  exit 0
fi
exit "$status"
