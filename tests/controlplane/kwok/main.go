// Command kwok is upstream's kwok with one sub-command more: `kwok stages`
// prints, as a configuration file for --config, the life of Nodes and Pods that
// the tests need. The stages are those of the same release, unchanged.
//
// It is a module of its own because kwok is built against older Kubernetes
// libraries than the control plane.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodelease "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// stages: a Node becomes Ready and stays so by its Lease, a scheduled Pod becomes
// Ready, a Job's Pod succeeds, and a Pod that is being deleted goes at once.
var stages = []string{
	nodefast.DefaultNodeInit,
	nodelease.DefaultNodeHeartbeatWithLease,
	podfast.DefaultPodReady,
	podfast.DefaultPodComplete,
	podfast.DefaultPodDelete,
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "stages" {
		fmt.Println(strings.Join(stages, "\n---\n"))
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
}

// run is upstream's cmd/kwok: the configuration is read from the flags before the
// command exists, so unknown flags pass here and are checked by the command.
func run() error {
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}

	ctx, _ := log.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	if err != nil {
		return fmt.Errorf("failed to read the configuration: %w", err)
	}
	command := cmd.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	return command.ExecuteContext(ctx)
}
