#!/bin/sh
# reproducible.sh BUILD: builds the packages of BUILD/dist again, from a copy of the source
# without its history, in another folder and with another umask, time zone and locale, and
# compares the bytes. Go's build cache is reused: with -trimpath, its entries do not depend on
# the folder.
set -eu
build=$(realpath "$1")
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

git ls-files -z --cached --others --exclude-standard --deduplicate | tar --null -T - --ignore-failed-read -cf - | tar -C "$copy" -xf -
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
version=$(cat "$build/version")
mkdir "$copy/other"
cp -R "$build/licences" "$copy/other" # reading them from the module cache again would take long
umask 077
TZ=Asia/Tokyo LC_ALL=C.UTF-8 "${MAKE:-make}" -s -j "$(nproc)" -C "$copy" packages BUILD=other VERSION="$version" >"$copy/log" 2>&1 || {
	tail -n 30 "$copy/log"
	exit 1
}
if ! diff "$build/dist/SHA256SUMS" "$copy/other/dist/SHA256SUMS"; then
	echo 'reproducible.sh: a second build differs in these files:' >&2
	diff -rq "$build/package" "$copy/other/package" >&2 || true
	exit 1
fi
echo 'A second build in another folder has the same bytes:'
cat "$build/dist/SHA256SUMS"
