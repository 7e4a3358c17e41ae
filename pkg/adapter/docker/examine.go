package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// Image describes an image that another engine runs.
type Image struct {
	ID         string
	Env        []string
	User       string
	Entrypoint []string
	Cmd        []string
	Preloads   string // contents of its own /etc/ld.so.preload
}

// Client returns the connection to the engine. It is valid until Close.
func (r *Runtime) Client() *client.Client { return r.engine.Client }

// Examine checks that the preload library would be loaded into the program that a container of
// the image runs with a command (empty: the image's own), as Start does, and returns the image. It
// starts no container.
func (r *Runtime) Examine(ctx context.Context, name string, command []string) (Image, error) {
	img, err := r.engine.findImage(ctx, name)
	if err != nil {
		return Image{}, err
	}
	found := Image{ID: img.ID, Env: img.Config.Env, User: img.Config.User, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd}
	if len(command) > 0 {
		found.Entrypoint, found.Cmd = command[:1], command[1:]
	}
	program := programOf(found.Entrypoint, found.Cmd)
	if program == "" {
		return Image{}, noProgram(name)
	}
	// Not under ctx: an interrupted creation could leave a container of unknown ID.
	tidy, cancel := detached(ctx)
	defer cancel()
	made, err := r.engine.ContainerCreate(tidy, &container.Config{Image: img.ID, Cmd: []string{"none"}}, nil, nil, nil, "")
	if err != nil {
		return Image{}, explain("inspect image "+name, err)
	}
	path := ""
	for _, entry := range found.Env {
		if list, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = list
		}
	}
	err = r.engine.checkProgram(ctx, made.ID, name, img.Config.WorkingDir, path, program)
	if err == nil {
		found.Preloads, err = r.engine.readFile(ctx, made.ID, preload.InsidePreload)
	}
	return found, errors.Join(err, r.engine.remove(tidy, made.ID))
}
