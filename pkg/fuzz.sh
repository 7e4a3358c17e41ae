#!/usr/bin/env bash
# fuzz.sh TIME PACKAGE...: runs each fuzz target of the packages for TIME. One target runs per
# processor, and a package is built once for all its targets. GOGC applies only to the
# compiler.
#
# A new input is minimized with at most 100 tries. Go's default is a minute, in which no new
# input is tried; some targets then got only a handful of inputs.
set -euo pipefail
go=${GO:-go}

# one TIME PROGRAM FOLDER PACKAGE TARGET: runs one target.
#
# On a busy machine, Go may report the end of the time as a failure (go.dev/issue/75804,
# fixed in Go 1.27), with only the message "context deadline exceeded". Such a run found
# nothing: a real failure names the failing line and the file of the input.
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
    echo "$target: time is up; no failing input found"
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
  targets=$(sed -n 's/^func \(Fuzz[[:alnum:]_]*\)(.*/\1/p' "$folder"/*_test.go 2>/dev/null || true) # a package may have no test files
  [ -n "$targets" ] || continue
  program=$work/${package//\//_}
  "$go" test -vet=off -c -fuzz . -o "$program" "$package"
  for target in $targets; do
    echo "$program $folder $package $target"
  done
done >"$work/targets"
xargs -P "$(nproc)" -L 1 "$0" --one "$time" <"$work/targets"
