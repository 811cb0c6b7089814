package up

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// live is a control plane of the programs that `ensure` built. Tests that need
// one are left out unless CONTROLPLANE names their folder.
type live struct {
	Ready
	t       *testing.T
	command *exec.Cmd
	stdin   io.WriteCloser
	stderr  bytes.Buffer
	admin   api
	control *http.Client
}

func begin(t *testing.T, args ...string) (*live, *bufio.Reader) {
	t.Helper()
	folder := os.Getenv("CONTROLPLANE")
	if folder == "" {
		t.Skip("set CONTROLPLANE to the folder that `ensure` prints")
	}
	l := &live{t: t}
	l.Dir = filepath.Join(t.TempDir(), "dir")
	args = append([]string{"up", "--dir", l.Dir, "--rm", "--exit-on-stdin-eof"}, args...)
	l.command = exec.Command(filepath.Join(folder, "controlplane"), args...)
	l.command.Stderr = &l.stderr
	stdin, inErr := l.command.StdinPipe()
	stdout, outErr := l.command.StdoutPipe()
	if err := errors.Join(inErr, outErr, l.command.Start()); err != nil {
		t.Fatal(err)
	}
	l.stdin = stdin
	t.Cleanup(func() { _ = l.command.Process.Kill() })
	return l, bufio.NewReader(stdout)
}

func upAndReady(t *testing.T, args ...string) *live {
	t.Helper()
	l, stdout := begin(t, args...)
	line, err := stdout.ReadBytes('\n')
	if err != nil {
		_ = l.command.Wait()
		t.Fatalf("it was not ready: %v\n%s", err, l.stderr.String())
	}
	if err := json.Unmarshal(line, &l.Ready); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(l.CA)
	if err != nil {
		t.Fatal(err)
	}
	l.admin = newAPI(l.Server, ca, l.Token)
	l.control = &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", l.Socket) },
	}}
	return l
}

// act posts to the control socket and returns the part's status.
func (l *live) act(verb, part string) (status PartStatus) {
	l.t.Helper()
	control := api{"http://controlplane", "", l.control}
	if err := control.call(l.t.Context(), http.MethodPost, "/"+verb+"/"+part, nil, &status); err != nil {
		l.t.Fatalf("%s %s: %v", verb, part, err)
	}
	return status
}

// ask calls the API server and fails the test if that fails.
func (l *live) ask(method, path string, body, result any) {
	l.t.Helper()
	if err := l.admin.call(l.t.Context(), method, path, body, result); err != nil {
		l.t.Fatalf("%s %s: %v", method, path, err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so after a minute: %s", what)
		}
	}
}

// expectGone waits for the supervisor's end and checks that nothing is left.
func (l *live) expectGone() error {
	l.t.Helper()
	err := l.command.Wait()
	for part, pid := range l.PIDs {
		eventually(l.t, part+" is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	}
	for part, port := range l.Ports {
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			l.t.Errorf("the port of %s is still in use: %v", part, err)
			continue
		}
		listener.Close()
	}
	eventually(l.t, "the folder is gone", func() bool {
		_, err := os.Stat(l.Dir)
		return errors.Is(err, os.ErrNotExist)
	})
	return err
}

func deployment(name string, replicas int) map[string]any {
	labels := map[string]string{"app": name}
	return map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"replicas": replicas, "selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
			},
		},
	}
}

func (l *live) expectAvailable(namespace, name string, replicas int) {
	l.t.Helper()
	base := "/apis/apps/v1/namespaces/" + namespace + "/deployments"
	l.ask(http.MethodPost, base, deployment(name, replicas), nil)
	eventually(l.t, name+" is available", func() bool {
		var got struct {
			Status struct{ AvailableReplicas int }
		}
		l.ask(http.MethodGet, base+"/"+name, nil, &got)
		return got.Status.AvailableReplicas == replicas
	})
}

func TestLiveControllers(t *testing.T) {
	l := upAndReady(t)
	start := time.Now()
	l.expectAvailable("default", "fifty", 50)
	t.Logf("50 replicas were available after %s", time.Since(start))

	start = time.Now()
	l.ask(http.MethodDelete, "/apis/apps/v1/namespaces/default/deployments/fifty", nil, nil)
	eventually(t, "the Pods are collected", func() bool {
		var pods struct{ Items []any }
		l.ask(http.MethodGet, "/api/v1/namespaces/default/pods", nil, &pods)
		return len(pods.Items) == 0
	})
	t.Logf("their Pods were collected after %s", time.Since(start))

	namespace := map[string]any{"metadata": map[string]string{"name": "brief"}}
	l.ask(http.MethodPost, "/api/v1/namespaces", namespace, nil)
	l.expectAvailable("brief", "one", 1)
	start = time.Now()
	l.ask(http.MethodDelete, "/api/v1/namespaces/brief", nil, nil)
	eventually(t, "the namespace is gone", func() bool {
		return isStatus(l.admin.get(t.Context(), "/api/v1/namespaces/brief", nil), http.StatusNotFound)
	})
	t.Logf("the namespace was gone after %s", time.Since(start))

	audit, err := os.ReadFile(l.Audit)
	if err != nil || !bytes.Contains(audit, []byte(`"userAgent":"kube-controller-manager/`)) {
		t.Errorf("the audit log does not name the controller manager (%v)", err)
	}
	if err := l.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := l.expectGone(); err != nil {
		t.Errorf("the end by SIGTERM: %v", err)
	}
}

func TestLiveFaults(t *testing.T) {
	l := upAndReady(t)
	for _, part := range PartNames {
		if status := l.act("kill", part); status.State != stopped || status.LastExit != "signal: killed" {
			t.Errorf("%s after kill: %+v", part, status)
		}
		if status := l.act("start", part); status.State != running || status.Port != l.Ports[part] || status.Starts != 2 {
			t.Errorf("%s after start: %+v, port was %d", part, status, l.Ports[part])
		}
		l.PIDs[part] = l.act("restart", part).PID
	}
	l.act("pause", apiServer)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := l.admin.get(ctx, "/readyz", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused API server: %v", err)
	}
	l.act("resume", apiServer)
	l.expectAvailable("default", "after", 5)

	l.stdin.Close()
	if err := l.expectGone(); err != nil {
		t.Errorf("the end by a closed stdin: %v", err)
	}
}

func TestLiveKilledSupervisorLeavesNothing(t *testing.T) {
	l := upAndReady(t)
	if err := l.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = l.expectGone()
}

func TestLiveDeathEndsAll(t *testing.T) {
	l := upAndReady(t, "--with-controllers=false")
	if err := syscall.Kill(l.PIDs[etcd], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := l.expectGone(); err == nil {
		t.Error("the death of a part was no error")
	}
	if said := l.stderr.String(); !strings.Contains(said, "etcd ended by itself (signal: killed)") {
		t.Errorf("it said: %s", said)
	}
}

func TestLiveEndWhileStarting(t *testing.T) {
	for _, wait := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond} {
		l, _ := begin(t)
		time.Sleep(wait)
		if err := l.command.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := l.expectGone(); err == nil || !strings.Contains(l.stderr.String(), errEarly.Error()) {
			t.Errorf("error %v, it said: %s", err, l.stderr.String())
		}
	}
}

func TestLiveTwoAtOnce(t *testing.T) {
	for _, name := range []string{"one", "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := upAndReady(t, "--with-controllers=false")
			l.ask(http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]string{"name": "same"}}, nil)
			l.stdin.Close()
			if err := l.expectGone(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLiveFailedStartSaysWhy(t *testing.T) {
	for _, part := range PartNames {
		t.Run(part, func(t *testing.T) {
			l, _ := begin(t, "--arg", part+"=--no-such-flag")
			if err := l.expectGone(); err == nil {
				t.Error("an unknown flag was no error")
			}
			said := l.stderr.String()
			// etcd alone follows the reason with more than 20 lines of usage.
			why := part == etcd || strings.Contains(said, "-no-such-flag")
			if !strings.Contains(said, "failed to start "+part) || !why {
				t.Errorf("it said: %s", said)
			}
		})
	}
}
