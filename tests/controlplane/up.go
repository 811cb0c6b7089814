package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"reeve.dev/controlplane/internal/up"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func init() {
	programs["up"] = runUp
	for _, verb := range up.Verbs {
		programs[verb] = func(args []string) int {
			return report(up.Control(verb, args[1:], os.Stdout, os.Stderr))
		}
	}
}

func runUp(args []string) int {
	self, err := os.Executable()
	if err != nil {
		return report(err)
	}
	config, err := up.ParseConfig(args[1:], self, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitUsage
	}

	// Whoever reads our output may be gone when we report that we end: that must
	// not kill us before everything is stopped.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	// A second signal ends us at once, and with us all parts.
	context.AfterFunc(ctx, restore)
	if config.ExitOnStdinEOF {
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			end()
		}()
	}
	return report(up.Run(ctx, config, self, os.Stdout, os.Stderr))
}

func report(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "controlplane:", err)
	return exitFailure
}
