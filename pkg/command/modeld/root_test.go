package modeld

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// TestNoRoomIsBusy: where there is no room, the status is that of a timeout and the code
// under -o json says what it is.
func TestNoRoomIsBusy(t *testing.T) {
	err := explain(fmt.Errorf("put m: %w", &wire.Error{Code: wire.CodeBusy, Message: "full"}))
	var of *cli.Error
	var named interface{ JSONCode() string }
	if !errors.As(err, &of) || of.Exit != cli.ExitTimeout || !errors.As(of.Err, &named) || named.JSONCode() != "busy" {
		t.Errorf("got %#v", err)
	}
	if err := explain(&wire.Error{Code: wire.CodeCapacity}); errors.As(err, &named) && named.JSONCode() == "busy" {
		t.Errorf("too large a model is %#v", err)
	}
}
