package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// checkProgram checks a program in the file system of a container of an image, before the start. dir and path
// are the working directory and PATH of the program.
func (e *engine) checkProgram(ctx context.Context, id, image, dir, path, program string) error {
	err := preload.CheckProgram(&files{ctx, e, id, dir, path}, program)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("image %s: %w", image, err)
}

// files gives preload.CheckProgram access to a container's files.
type files struct {
	ctx     context.Context
	engine  *engine
	id      string
	dir     string // working directory
	folders string // PATH
}

// Find locates a command in the same way as the engine: on the container's PATH or relative
// to its working directory.
func (f *files) Find(command string) (string, error) {
	if strings.Contains(command, "/") {
		if !path.IsAbs(command) {
			command = path.Join("/", f.dir, command)
		}
		return f.resolve(command)
	}
	list := f.folders
	if list == "" {
		list = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for dir := range strings.SplitSeq(list, ":") {
		found, err := f.resolve(path.Join("/", dir, command))
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return found, err
		}
	}
	return "", fs.ErrNotExist
}

// resolve follows symbolic links to an executable file.
func (f *files) resolve(name string) (string, error) {
	const mostLinks = 40
	for range mostLinks {
		stat, err := f.engine.ContainerStatPath(f.ctx, f.id, name)
		switch {
		case cerrdefs.IsNotFound(err):
			return "", fs.ErrNotExist
		case err != nil:
			return "", err
		case stat.Mode&fs.ModeSymlink != 0:
			target := stat.LinkTarget
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(name), target)
			}
			name = target
		case !stat.Mode.IsRegular() || stat.Mode&0o111 == 0:
			return "", fs.ErrPermission
		default:
			return name, nil
		}
	}
	return "", fs.ErrNotExist
}

// Open copies a program out of the container for inspection.
func (f *files) Open(name string) (preload.File, fs.FileMode, bool, error) {
	stream, _, err := f.engine.CopyFromContainer(f.ctx, f.id, name)
	if err != nil {
		return nil, 0, false, err
	}
	defer stream.Close()
	archive := tar.NewReader(stream)
	head, err := archive.Next()
	if err != nil {
		return nil, 0, false, err
	}
	if head.Typeflag != tar.TypeReg {
		return nil, 0, false, fmt.Errorf("%s is not a file", name)
	}
	copied, err := os.CreateTemp("", "gfaas-program-")
	if err != nil {
		return nil, 0, false, err
	}
	// The file exists only while it is open, even if this process is killed.
	_ = os.Remove(copied.Name())
	if _, err := io.Copy(copied, archive); err != nil {
		_ = copied.Close()
		return nil, 0, false, err
	}
	_, capable := head.PAXRecords["SCHILY.xattr.security.capability"]
	return copied, head.FileInfo().Mode(), capable, nil
}
