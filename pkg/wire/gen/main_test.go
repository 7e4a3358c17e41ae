package main

import (
	"os"
	"testing"
)

func TestHeaderIsCurrent(t *testing.T) {
	got, err := os.ReadFile("../../../hook/wire.h")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != header() {
		t.Error("hook/wire.h is out of date: run go generate ./pkg/wire")
	}
}
