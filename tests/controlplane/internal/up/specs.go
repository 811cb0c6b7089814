package up

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The parts, named as upstream's programs.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kwok              = "kwok"
)

// PartNames lists all parts in the order of their start.
var PartNames = []string{etcd, apiServer, controllerManager, scheduler, kwok}

const (
	serviceRange = "10.0.0.0/16" // larger ones make the API server start slower
	serviceIP    = "10.0.0.1"    // the first of it is the API server's own
	podRange     = "10.1.0.0/16"
	nodeIP       = "10.2.0.1"
)

// patience is how long a polite stop may take before the part is killed. etcd
// takes 7 s while the API server hangs on to it, all others under 2 s.
const patience = 10 * time.Second

// controllers are those that objects of the tests need. The others would only
// cost start time and requests that show up in the audit log.
var controllers = []string{
	"garbage-collector-controller",
	"namespace-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"deployment-controller",
	"replicaset-controller",
	"resourcequota-controller",
	"node-lifecycle-controller",
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*"]
- level: Metadata
`

func (s *Supervisor) etcdSpec() spec {
	return spec{
		name:    etcd,
		program: s.self,
		args: func() []string {
			client := "http://" + address(s.ports.of(etcd))
			// A single member never talks to peers, so any port does for them.
			peer := "http://127.0.0.1:0"
			return []string{
				"--name=only", "--data-dir=" + s.layout.etcd(),
				"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
				"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
				"--initial-cluster=only=" + peer,
				// Losing data when the machine dies is no loss here.
				"--unsafe-no-fsync",
				// A single member elects itself after one election timeout.
				"--heartbeat-interval=20", "--election-timeout=200",
				"--log-level=warn",
			}
		},
		ready: func(ctx context.Context) error {
			var health struct{ Health string }
			if err := newAPI("http://"+address(s.ports.of(etcd)), nil, "").get(ctx, "/health", &health); err != nil {
				return err
			}
			if health.Health != "true" {
				return fmt.Errorf("health is %q", health.Health)
			}
			return nil
		},
	}
}

func (s *Supervisor) apiServerSpec() spec {
	l := s.layout
	return spec{
		name:    apiServer,
		program: s.self,
		args: func() []string {
			return []string{
				"--etcd-servers=http://" + address(s.ports.of(etcd)),
				"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(s.ports.of(apiServer)),
				// Nobody routes to an address of this cluster, so none is published:
				// the endpoints of the Service `kubernetes` stay empty.
				"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
				"--tls-cert-file=" + l.pki("server.crt"), "--tls-private-key-file=" + l.pki("server.key"),
				"--client-ca-file=" + l.pki("ca.crt"),
				"--token-auth-file=" + l.conf("tokens.csv"),
				"--authorization-mode=Node,RBAC",
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-signing-key-file=" + l.pki("sa.key"),
				"--service-account-key-file=" + l.pki("sa.key"),
				"--service-cluster-ip-range=" + serviceRange,
				// A Pod may be made before its namespace has a ServiceAccount.
				"--disable-admission-plugins=ServiceAccount",
				"--allow-privileged=true",
				"--audit-policy-file=" + l.conf("audit-policy.yaml"),
				"--audit-log-path=" + l.audit(),
				// Blocking, so that a request's line is there when its answer is;
				// never rotated, so that a test reads one file.
				"--audit-log-mode=blocking", "--audit-log-maxsize=100000",
				// Else a polite stop waits a minute for watches that never end.
				"--shutdown-watch-termination-grace-period=2s",
			}
		},
		ready: func(ctx context.Context) error {
			return s.api().get(ctx, "/readyz", nil)
		},
	}
}

func (s *Supervisor) controllerManagerSpec() spec {
	l := s.layout
	return spec{
		name:    controllerManager,
		program: s.self,
		args: func() []string {
			return []string{
				"--kubeconfig=" + l.conf(controllerManager+".kubeconfig"),
				"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(s.ports.of(controllerManager)),
				"--tls-cert-file=" + l.pki("server.crt"), "--tls-private-key-file=" + l.pki("server.key"),
				"--controllers=" + strings.Join(controllers, ","),
				"--service-account-private-key-file=" + l.pki("sa.key"),
				"--root-ca-file=" + l.pki("ca.crt"),
				// Each controller under its own name, as roles and audit log expect.
				"--use-service-account-credentials=true",
				"--leader-elect=false",
				"--kube-api-qps=500", "--kube-api-burst=1000",
				// A node that seems dead after the API server was away for the usual
				// 50 s gets its Pods marked as not ready, and kwok never mends that.
				"--node-monitor-grace-period=5m",
			}
		},
		// Its own health is green before its controllers have listed anything. The
		// ServiceAccount says that at least one of them works.
		ready: func(ctx context.Context) error {
			if err := s.health(ctx, controllerManager); err != nil {
				return err
			}
			return s.api().get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
		},
	}
}

func (s *Supervisor) schedulerSpec() spec {
	l := s.layout
	return spec{
		name:    scheduler,
		program: s.self,
		args: func() []string {
			return []string{
				"--config=" + l.conf("scheduler.yaml"),
				"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(s.ports.of(scheduler)),
				"--tls-cert-file=" + l.pki("server.crt"), "--tls-private-key-file=" + l.pki("server.key"),
			}
		},
		ready: func(ctx context.Context) error { return s.health(ctx, scheduler) },
	}
}

// schedulerConfig exists because the flags for these settings are gone.
func schedulerConfig(l layout) []byte {
	return fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q, qps: 500, burst: 1000}
leaderElection: {leaderElect: false}
`, l.conf(scheduler+".kubeconfig"))
}

func (s *Supervisor) kwokSpec() spec {
	l := s.layout
	return spec{
		name:    kwok,
		program: s.config.Kwok,
		args: func() []string {
			return []string{
				"--kubeconfig=" + l.conf(kwok+".kubeconfig"),
				"--config=" + l.conf("kwok.yaml"),
				"--manage-all-nodes=true",
				"--node-ip=" + nodeIP, "--cidr=" + podRange,
				"--node-lease-duration-seconds=40", // the kubelet's default; without it no Lease
			}
		},
		prepare: func(ctx context.Context) error {
			return errors.Join(ensureNode(ctx, s.api()), dropLease(ctx, s.api()))
		},
		ready: func(ctx context.Context) error { return nodeReady(ctx, s.api()) },
	}
}

// kwokStages asks kwok for its own stages: they belong to its release.
func kwokStages(program string) ([]byte, error) {
	stages, err := exec.Command(program, "stages").Output()
	if err != nil {
		return nil, fmt.Errorf("failed to get the stages from %s: %w", program, err)
	}
	return stages, nil
}

// health asks a part that serves /healthz to everybody.
func (s *Supervisor) health(ctx context.Context, part string) error {
	return newAPI("https://"+address(s.ports.of(part)), s.ca, "").get(ctx, "/healthz", nil)
}

func (s *Supervisor) api() api {
	return newAPI(s.server(), s.ca, s.users[supervisor].token)
}

func (s *Supervisor) server() string { return "https://" + address(s.ports.of(apiServer)) }
