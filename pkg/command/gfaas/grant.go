package gfaas

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/grant"
)

func newGrant(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grant",
		Short: "Make keys for signed slices",
		Long: `Make the keys with which gfaas-place export --sign signs the slices of instances.

A grant is a signed document that allows an instance a slice on one node. The token
daemon of the node (gfaas-tokend --trust) registers the instance because it trusts the
key, so that no gfaas register is necessary on the node. The private key stays where
plans are exported. Every node gets the public key.`,
		Example: `  # Make a key, and let this machine's token daemon trust it
  gfaas grant keygen grant.key > grant.pub
  sudo install -m 644 grant.pub /etc/gfaas/grant.pub
  gfaas-tokend --trust /etc/gfaas/grant.pub --node gpu-1`,
	}
	cmd.AddCommand(newGrantKeygen(t), newGrantPublic(t))
	return cmd
}

func newGrantKeygen(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen FILE",
		Short: "Make a private key, and print its public key",
		Long: `Write a new private key to FILE, which only you can read, and print the public key.
An existing file is not overwritten. A user who can read the private key can give
any instance any slice on the nodes that trust it.`,
		Example: `  # Make a key for the exports of plans
  gfaas grant keygen grant.key > grant.pub`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			key := grant.GenerateKey()
			if err := createKeyFile(args[0], key.File(time.Now())); err != nil {
				return err
			}
			return t.printKey(key)
		},
	}
}

// createKeyFile writes a private key to a new file.
func createKeyFile(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return cli.Fail(cli.ExitFailure, "name another file, or remove this one if no node trusts its key", fmt.Errorf("%s exists already, and a key is not overwritten", path))
	}
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("write a private key: %w", err)
	}
	return nil
}

func newGrantPublic(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "public FILE|-",
		Short: "Print the public key of a private key",
		Long: `Print the public key of the private key in FILE; - is standard input. The output is one
line. Append it to the file of gfaas-tokend --trust, so that the token daemon accepts
slices that were signed with this private key. That file can have several keys, one on
each line. Lines that begin with # are comments.`,
		Example: `  # Add a second key to the trusted ones
  gfaas grant public grant.key >> grant.pub`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("key"),
		RunE: func(_ *cobra.Command, args []string) error {
			key, err := cli.Load(t.env, args[0], grant.ReadPrivate)
			if err != nil {
				return err
			}
			return t.printKey(key)
		},
	}
}

func (t *tool) printKey(key grant.PrivateKey) error {
	return t.env.Emit(func(w io.Writer) error { _, err := fmt.Fprintln(w, key.Public()); return err })
}
