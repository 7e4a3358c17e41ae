package cli

import (
	"fmt"
	"os"
	"syscall"

	"github.com/gfaas/gfaas/pkg/grant"
)

// ReadTrust reads a file of public keys. It refuses a file that users other than root and the own one can change,
// because they could make the program trust their keys.
func ReadTrust(path string) (grant.Trust, error) {
	file, err := os.Open(path)
	if err != nil {
		return grant.Trust{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return grant.Trust{}, err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return grant.Trust{}, fmt.Errorf("%s belongs to user %d: expected root or the user of this program, because its owner can change the trusted keys", path, s.Uid)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o022 != 0 {
		return grant.Trust{}, fmt.Errorf("%s can be changed by other users (mode %04o): run chmod go-w", path, info.Mode().Perm())
	}
	return grant.ReadTrust(file, path)
}
