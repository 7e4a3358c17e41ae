#!/bin/sh
# image.sh [NAME]: builds a Docker image from the saxpy program in this folder and the
# libraries that it needs. It pulls no base image.
set -eu

name=${1:-gfaas-saxpy:latest}
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cp "$here/saxpy" "$root/saxpy"
chmod 755 "$root" "$root/saxpy"
# The program's libraries without the driver, and the rest of glibc, which the driver and the
# preload library may need.
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
# The image that had this name before has no name now.
if [ -n "$before" ]; then
	docker rmi "$before" >/dev/null 2>&1 || true # a container may still use it
fi
