#!/bin/sh
# ffmpeg_frames.sh FFMPEG SECONDS: prints the number of frames that FFmpeg uploads to a GPU
# and scales there.
set -eu
timeout --foreground -s INT "$2" "$1" -nostdin -v error -progress - -init_hw_device cuda -f lavfi -i color=size=256x256:rate=1000 \
	-vf format=yuv420p,hwupload_cuda,scale_cuda=128:128 -f null - |
	awk -F= '$1 == "frame" { frames = $2 } $0 == "progress=end" { ended = 1 } END { if (!ended) exit 1; print frames }'
