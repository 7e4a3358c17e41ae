package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
)

// findImage looks an image up, and pulls it when the engine does not have it.
func (r *Runtime) findImage(ctx context.Context, name string) (image.InspectResponse, error) {
	img, err := r.engine.ImageInspect(ctx, name)
	if cerrdefs.IsNotFound(err) {
		if err := r.pull(ctx, name); err != nil {
			return img, err
		}
		img, err = r.engine.ImageInspect(ctx, name)
	}
	if err != nil {
		return img, explain("look up image "+name, err)
	}
	if img.Config == nil {
		img.Config = &dockerspec.DockerOCIImageConfig{}
	}
	return img, nil
}

// maxPreloads bounds an image's list of libraries to preload, in bytes.
const maxPreloads = 64 << 10

// preloads returns what an image itself has at preload.InsidePreload; empty if nothing.
// It is read once for each image, from a container that is not started. Find takes that for
// the plan's: if this process is killed meanwhile, the container is found and removed.
func (r *Runtime) preloads(ctx context.Context, img image.InspectResponse, plan plan) (string, error) {
	r.mu.Lock()
	list, known := r.lists[img.ID]
	r.mu.Unlock()
	if known || img.ID == "" {
		return list, nil
	}
	// Not under ctx: nobody would know a container of a creation that is cut short.
	create, cancel := detached(ctx)
	defer cancel()
	config := &container.Config{Image: img.ID, Cmd: []string{"none"}, Labels: plan.config.Labels}
	host := &container.HostConfig{Mounts: []mount.Mount{bind(plan.socket, preload.InsideSocket, false)}}
	made, err := r.engine.ContainerCreate(create, config, host, nil, nil, "")
	if err != nil {
		return "", explain("look into image "+img.ID, err)
	}
	list, err = r.readFile(ctx, made.ID, preload.InsidePreload)
	if err := errors.Join(err, r.remove(create, made.ID)); err != nil {
		return "", err
	}
	r.mu.Lock()
	r.lists[img.ID] = list
	r.mu.Unlock()
	return list, nil
}

// readFile reads a small file of a container; it is empty if there is no such file.
func (r *Runtime) readFile(ctx context.Context, id, name string) (string, error) {
	stream, _, err := r.engine.CopyFromContainer(ctx, id, name)
	if cerrdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", explain("read "+name+" of the image", err)
	}
	defer stream.Close()
	archive := tar.NewReader(stream)
	head, err := archive.Next()
	if err != nil {
		return "", fmt.Errorf("read %s of the image: %w", name, err)
	}
	if head.Typeflag != tar.TypeReg || head.Size > maxPreloads {
		return "", fmt.Errorf("%s of the image is not a file of at most %d bytes", name, maxPreloads)
	}
	text, err := io.ReadAll(archive)
	return string(text), err
}

// pull fetches an image. The error is Unavailable unless ctx ended.
func (r *Runtime) pull(ctx context.Context, name string) error {
	stream, err := r.engine.ImagePull(ctx, name, image.PullOptions{})
	if err == nil {
		defer stream.Close()
		err = pullResult(stream)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("pull image %s: %w", name, ctx.Err())
	}
	return &Error{
		Err:     fmt.Errorf("image %s is not on this engine and cannot be pulled: %w", name, err),
		Missing: true,
		Remedy:  "build it, load it with docker load, or log in and docker pull " + name,
	}
}

// pullResult reads the progress of a pull to its end, where an error is told.
func pullResult(stream io.Reader) error {
	for decoder := json.NewDecoder(stream); ; {
		var message struct {
			Error string `json:"error"`
		}
		err := decoder.Decode(&message)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case message.Error != "":
			return errors.New(message.Error)
		}
	}
}

// remove removes a container, running or not; one that is gone is no error.
func (r *Runtime) remove(ctx context.Context, id string) error {
	err := r.engine.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil, cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsConflict(err): // somebody else is removing it
		waiting, failed := r.engine.ContainerWait(ctx, id, container.WaitConditionRemoved)
		select {
		case <-waiting:
			return nil
		case err = <-failed:
			if cerrdefs.IsNotFound(err) {
				return nil
			}
		}
	}
	return explain("remove container "+short(id), err)
}

// short is how people name a container.
func short(id string) string { return id[:min(len(id), 12)] }
