#!/usr/bin/env bash
# fuzz.sh TIME PACKAGE...: fuzzes each target of the packages for so long. As many as
# there are processors run at once, each on one, and a package is built once for all of
# its targets. GOGC is for the compiler.
#
# What is new is made smaller by a hundred tries at most. Go's own limit is a minute each,
# in which nothing new is tried: of some targets that left a handful of inputs in all.
set -euo pipefail
go=${GO:-go}

# one TIME PROGRAM FOLDER PACKAGE TARGET: fuzzes one.
#
# Where the processors are busy Go may call it a failure that the time is up
# (go.dev/issue/75804, mended in Go 1.27): the target fails with the words
# "context deadline exceeded" and nothing else. That is the end of a run that
# found nothing. A finding is never told so: it names the line that failed and
# the file that the input was written to.
one() {
  local time=$1 program=$2 folder=$3 package=$4 target=$5 log status=0
  log=$program.$target
  cd "$folder"
  env -u GOGC "$program" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 100x -test.parallel 1 \
    -test.fuzzcachedir "$("$go" env GOCACHE)/fuzz/$package" 2>&1 | tee "$log" | sed -u "s/^/$target: /" || status=$?
  [ "$status" = 0 ] && return 0
  local time_is_up="--- FAIL: $target \([0-9.]+s\)
    context deadline exceeded
FAIL"
  if [[ $(grep -v '^fuzz: ' "$log") =~ ^$time_is_up$ ]]; then
    echo "$target: the time is up; nothing was found"
    return 0
  fi
  return "$status"
}

if [ "$1" = --one ]; then
  shift
  one "$@"
  exit
fi

time=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$go" list -f '{{.Dir}} {{.ImportPath}}' "$@" | while read -r folder package; do
  targets=$(sed -n 's/^func \(Fuzz[[:alnum:]_]*\)(.*/\1/p' "$folder"/*_test.go 2>/dev/null || true) # it may have none
  [ -n "$targets" ] || continue
  program=$work/${package//\//_}
  "$go" test -vet=off -c -fuzz . -o "$program" "$package"
  for target in $targets; do
    echo "$program $folder $package $target"
  done
done >"$work/targets"
xargs -P "$(nproc)" -L 1 "$0" --one "$time" <"$work/targets"
