#!/bin/sh
# image.sh [NAME]: makes a Docker image of the saxpy program beside this script
# and the few libraries it needs, without pulling a base image.
set -eu

name=${1:-gfaas-saxpy:latest}
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cp "$here/saxpy" "$root/saxpy"
chmod 755 "$root" "$root/saxpy"
# What the loader finds for the program, the driver aside, and the rest of
# glibc, which the driver and the preload library may need.
libs=$(ldd "$here/saxpy" | grep -v 'libcuda\.so' | grep -o '/[^ ]*')
libc=$(echo "$libs" | grep '/libc\.so\.6$')
for lib in libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1; do
	if [ -e "$(dirname "$libc")/$lib" ]; then
		libs="$libs $(dirname "$libc")/$lib"
	fi
done
for lib in $libs; do
	mkdir -p "$root$(dirname "$lib")"
	cp -L "$lib" "$root$lib"
done
before=$(docker image ls -q "$name")
tar -C "$root" --owner=0 --group=0 -cf - . |
	docker import --change 'ENV HOST=0.0.0.0' --change 'EXPOSE 8080' \
		--change 'ENTRYPOINT ["/saxpy"]' - "$name"
# The image that had the name before would stay without one.
if [ -n "$before" ]; then
	docker rmi "$before" >/dev/null 2>&1 || true # a container may still use it
fi
