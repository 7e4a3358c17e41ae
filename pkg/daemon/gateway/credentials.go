package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
)

// OpenFileError reports that other users can read a file of credentials.
type OpenFileError struct {
	Path string
	Mode fs.FileMode
}

func (e *OpenFileError) Error() string {
	return fmt.Sprintf("%s is accessible to other users (mode %v)", e.Path, e.Mode)
}

// Hint returns the next step for the user.
func (e *OpenFileError) Hint() string { return "chmod 600 " + e.Path }

// maxCredentials is the first invalid size of a file of credentials, in bytes.
const maxCredentials = 4096

// ReadCredentials reads the file at path, which contains one line user:password. It returns
// an *OpenFileError if users other than the owner may access the file.
func ReadCredentials(path string) (*api.Credentials, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, &OpenFileError{path, mode}
	}
	text := make([]byte, maxCredentials)
	n, err := io.ReadFull(f, text)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%s:1: empty, expected user:password", path)
	}
	text = bytes.TrimRight(text[:n], "\r\n")
	user, password, ok := strings.Cut(string(text), ":")
	if !ok || user == "" || password == "" || strings.ContainsAny(string(text), "\r\n") || n == maxCredentials {
		return nil, fmt.Errorf("%s:1: expected one line user:password", path)
	}
	return api.NewCredentials(user, password), nil
}
