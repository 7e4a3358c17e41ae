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

// findImage returns an image, after pulling it if the engine does not have it.
func (e *engine) findImage(ctx context.Context, name string) (image.InspectResponse, error) {
	img, err := e.ImageInspect(ctx, name)
	if cerrdefs.IsNotFound(err) {
		if err := e.pull(ctx, name); err != nil {
			return img, err
		}
		img, err = e.ImageInspect(ctx, name)
	}
	if err != nil {
		return img, explain("find image "+name, err)
	}
	if img.Config == nil {
		img.Config = &dockerspec.DockerOCIImageConfig{}
	}
	return img, nil
}

// maxPreloads is the size limit of an image's list of libraries to preload, in bytes.
const maxPreloads = 64 << 10

// preloads returns the contents of the file preload.InsidePreload in an image, or "" if
// there is none. It reads each image once, from a container that is never started. The
// container has the labels and socket folder of ctr: if this process is killed meanwhile,
// Find returns the container, and it is removed.
func (e *engine) preloads(ctx context.Context, img image.InspectResponse, ctr containerSpec) (string, error) {
	if list, known := e.preloadLists.Load(img.ID); known {
		return list.(string), nil
	}
	// Not under ctx: an interrupted creation could leave a container of unknown ID.
	create, cancel := detached(ctx)
	defer cancel()
	config := &container.Config{Image: img.ID, Cmd: []string{"none"}, Labels: ctr.config.Labels}
	host := &container.HostConfig{Mounts: []mount.Mount{bind(ctr.socket, preload.InsideSocket, bindReadOnly)}}
	made, err := e.ContainerCreate(create, config, host, nil, nil, "")
	if err != nil {
		return "", explain("inspect image "+img.ID, err)
	}
	list, err := e.readFile(ctx, made.ID, preload.InsidePreload)
	if err := errors.Join(err, e.remove(create, made.ID)); err != nil {
		return "", err
	}
	e.preloadLists.Store(img.ID, list)
	return list, nil
}

// readFile reads a small file of a container. It returns "" if the file does not exist.
func (e *engine) readFile(ctx context.Context, id, name string) (string, error) {
	stream, _, err := e.CopyFromContainer(ctx, id, name)
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

// pull fetches an image. The error is a *ports.UnavailableError unless ctx ended.
func (e *engine) pull(ctx context.Context, name string) error {
	stream, err := e.ImagePull(ctx, name, image.PullOptions{})
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
	return unavailable(fmt.Errorf("image %s is not on this engine and cannot be pulled: %w", name, err),
		"build it, load it with docker load, or log in and docker pull "+name)
}

// pullResult reads the progress of a pull to its end and returns the error that it reports,
// if any.
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

// remove removes a container, running or not. It returns nil if the container does not
// exist.
func (e *engine) remove(ctx context.Context, id string) error {
	err := e.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil, cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsConflict(err): // another process is removing it
		waiting, failed := e.ContainerWait(ctx, id, container.WaitConditionRemoved)
		select {
		case <-waiting:
			return nil
		case err = <-failed:
			if cerrdefs.IsNotFound(err) {
				return nil
			}
		}
	}
	return explain("remove container "+shortID(id), err)
}

// shortID returns the usual short form of a container's ID.
func shortID(id string) string { return id[:min(len(id), 12)] }
