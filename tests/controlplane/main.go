// Command controlplane is a whole Kubernetes control plane in one program, for
// the tests of Reeve: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and kubectl, each the upstream code unchanged, and a supervisor
// (`up`) that runs them as separate processes on this machine.
//
// Invariant: what a part does is decided by its name only, taken from argv[0] if
// that is a part's name and else from the first argument. The supervisor starts
// parts by argv[0], so that their User-Agent in the audit log is the part's name.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	args := os.Args
	run, known := programs[filepath.Base(args[0])]
	if !known {
		if len(args) < 2 {
			fmt.Fprint(os.Stderr, usage)
			os.Exit(2)
		}
		args = args[1:]
		if run, known = programs[args[0]]; !known {
			fmt.Fprintf(os.Stderr, "controlplane: unknown sub-command %q\n\n%s", args[0], usage)
			os.Exit(2)
		}
	}
	// The upstream commands read os.Args themselves.
	os.Args = args
	os.Exit(run(args))
}
