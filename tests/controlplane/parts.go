package main

import (
	"os"
	_ "time/tzdata" // CronJobs name time zones, and the machine may know none.

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's credential plugins
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the rest client's series on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // the build's version on /metrics
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// programs maps a name to what runs under it; the result is the exit code.
var programs = map[string]func(args []string) int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func([]string) int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func([]string) int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func([]string) int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
}

func runEtcd(args []string) int {
	etcdmain.Main(args)
	return 0
}

// runKubectl is upstream's cmd/kubectl: verbosity is read before the command is
// built, because building it already logs.
func runKubectl([]string) int {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
		return 1
	}
	return 0
}
