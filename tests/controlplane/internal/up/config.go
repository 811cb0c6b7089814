// Package up runs a Kubernetes control plane as processes on this machine and
// takes it down again without leaving anything behind.
//
// It knows nothing of Kubernetes' libraries: parts are processes with arguments,
// a log file and a readiness check over HTTP. So its tests build in seconds.
//
// Reading order: config (what was asked), layout (the folder), pki, specs (the
// parts), part (one part's life), supervisor (their order), control (the socket).
package up

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config is what the command line asks for.
type Config struct {
	// Dir holds everything that is made; empty means a new temporary folder.
	Dir string
	// Kwok is the kwok program; empty means no Node, so no Pod ever starts.
	Kwok string
	// Controllers says whether anything but etcd and kube-apiserver runs.
	Controllers bool
	// ReadyFile gets the ready line too, if set.
	ReadyFile string
	// ExitOnStdinEOF ends everything when whoever holds our stdin is gone.
	ExitOnStdinEOF bool
	// Remove deletes everything that was made when all has stopped.
	Remove bool
	// Timeout is how long one part may take until it is ready.
	Timeout time.Duration
	// Args are arguments added to a part's own, by part.
	Args map[string][]string
}

// ParseConfig reads the arguments of `up`. It has printed what is wrong, and the
// usage, when it fails.
func ParseConfig(args []string, self string, stderr io.Writer) (Config, error) {
	config := Config{Args: map[string][]string{}}
	flags := flag.NewFlagSet("controlplane up", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&config.Dir, "dir", "", "`folder` for everything that is made: new, empty, or left by an earlier up (default: a temporary one, and --rm)")
	flags.StringVar(&config.Kwok, "kwok", filepath.Join(filepath.Dir(self), "kwok"), "kwok `program` that makes Pods ready; empty: no Node")
	flags.BoolVar(&config.Controllers, "with-controllers", true, "run more than etcd and kube-apiserver")
	flags.StringVar(&config.ReadyFile, "ready-file", "", "`file` that gets the ready line too")
	flags.BoolVar(&config.ExitOnStdinEOF, "exit-on-stdin-eof", false, "stop everything when stdin closes")
	flags.BoolVar(&config.Remove, "rm", false, "remove everything that was made at the end")
	flags.DurationVar(&config.Timeout, "timeout", 2*time.Minute, "`time` that one part may take until it is ready")
	flags.Func("arg", "extra argument of a part, as `PART=ARGUMENT`, repeatable: --arg kube-apiserver=--v=4", func(value string) error {
		part, argument, found := strings.Cut(value, "=")
		if !found || !slices.Contains(PartNames, part) {
			return fmt.Errorf("%q is not PART=ARGUMENT with a PART of %s", value, strings.Join(PartNames, ", "))
		}
		config.Args[part] = append(config.Args[part], argument)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return config, err
	}
	if err := config.complete(flags.Args()); err != nil {
		fmt.Fprintln(stderr, "controlplane up:", err)
		return config, err
	}
	return config, nil
}

func (c *Config) complete(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if c.Controllers && c.Kwok != "" {
		if _, err := os.Stat(c.Kwok); err != nil {
			return fmt.Errorf("no kwok program at %s: pass --kwok PATH, or --kwok '' to do without a Node", c.Kwok)
		}
	}
	if c.Dir == "" {
		dir, err := os.MkdirTemp("", "controlplane-")
		if err != nil {
			return fmt.Errorf("failed to make a folder: %w", err)
		}
		// Only its name is wanted: whoever makes the folder removes it.
		if err := os.Remove(dir); err != nil {
			return fmt.Errorf("failed to make a folder: %w", err)
		}
		c.Dir, c.Remove = dir, true
	}
	var problems []error
	for _, path := range []*string{&c.Dir, &c.Kwok, &c.ReadyFile} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		*path = absolute
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
