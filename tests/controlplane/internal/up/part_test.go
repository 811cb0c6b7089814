package up

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shellPart is a part that runs a shell script and is ready when the script has
// made the file `ready` in the folder.
func shellPart(t *testing.T, script string) (*part, chan *part) {
	t.Helper()
	l, err := claim(filepath.Join(t.TempDir(), "dir"))
	if err != nil {
		t.Fatal(err)
	}
	deaths := make(chan *part, 1)
	p := &part{
		spec: spec{
			name:    "shell",
			program: "/bin/sh",
			args:    func() []string { return []string{"-c", script} },
			ready: func(context.Context) error {
				_, err := os.Stat(l.path("ready"))
				return err
			},
		},
		state: stopped, launcher: newLauncher(), layout: l, timeout: 10 * time.Second,
		died: func(p *part) { deaths <- p },
	}
	t.Cleanup(func() { p.stop(0) })
	return p, deaths
}

const serves = "touch ready; while :; do sleep 0.1; done"

func TestStartIsReadyAndStopEnds(t *testing.T) {
	p, deaths := shellPart(t, serves)
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := p.status().PID
	if err := p.start(t.Context()); err != nil || p.status().PID != pid {
		t.Errorf("a second start: error %v, pid %d instead of %d", err, p.status().PID, pid)
	}
	if status := p.status(); status.State != running || status.RSSKB == 0 || status.Starts != 1 {
		t.Errorf("status of a running part: %+v", status)
	}
	if killed := p.stop(5 * time.Second); killed {
		t.Error("a part that ends on SIGTERM was killed")
	}
	if status := p.status(); status.State != stopped || status.PID != 0 || status.LastExit != "signal: terminated" {
		t.Errorf("status of a stopped part: %+v", status)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
	expectNoDeath(t, deaths)
}

func TestStubbornPartIsKilled(t *testing.T) {
	p, deaths := shellPart(t, "trap '' TERM; "+serves)
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if killed := p.stop(200 * time.Millisecond); !killed {
		t.Error("the part ignored SIGTERM and was not killed")
	}
	expectNoDeath(t, deaths)
}

func TestDeathIsReported(t *testing.T) {
	p, deaths := shellPart(t, "touch ready; echo last words; read -r _ <fifo; exit 3")
	if err := syscall.Mkfifo(p.layout.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(p.layout.path("fifo"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fifo.Close()
	select {
	case <-deaths:
	case <-time.After(5 * time.Second):
		t.Fatal("no death was reported")
	}
	if status := p.status(); status.State != failed || status.LastExit != "exit status 3" {
		t.Errorf("status of a dead part: %+v", status)
	}
	if !strings.Contains(p.tail(), "last words") {
		t.Errorf("the end of the log: %q", p.tail())
	}
}

func TestFailedStartShowsTheLog(t *testing.T) {
	p, deaths := shellPart(t, "for i in $(seq 30); do echo line $i; done; exit 1")
	err := p.start(t.Context())
	if err == nil {
		t.Fatal("a part that ends at once has started")
	}
	for _, want := range []string{"failed to start shell", "exit status 1", "line 11", "line 30"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error: %s", want, err)
		}
	}
	if strings.Contains(err.Error(), "line 10\n") {
		t.Errorf("more than %d lines are in the error", tailLines)
	}
	expectNoDeath(t, deaths)
}

func TestStartThatIsNeverReady(t *testing.T) {
	p, _ := shellPart(t, "sleep 60")
	p.timeout = 200 * time.Millisecond
	if err := p.start(t.Context()); err == nil || !strings.Contains(err.Error(), "not ready after 200ms") {
		t.Errorf("error: %v", err)
	}
	p.timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := p.start(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error: %v", err)
	}
	if status := p.status(); status.State != failed || status.PID != 0 {
		t.Errorf("status: %+v", status)
	}
}

func TestPausedPartCanBeStopped(t *testing.T) {
	p, deaths := shellPart(t, serves)
	if err := p.pause(); err == nil {
		t.Error("a stopped part was paused")
	}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.pause(), p.pause()); err != nil || !p.is(paused) {
		t.Errorf("pause: %v, %s", err, p.status().State)
	}
	if err := errors.Join(p.resume(), p.pause()); err != nil {
		t.Errorf("resume: %v", err)
	}
	if killed := p.stop(5 * time.Second); killed {
		t.Error("a paused part was killed instead of stopped")
	}
	expectNoDeath(t, deaths)
}

func TestLoggedLooksAtTheLatestStartOnly(t *testing.T) {
	p, _ := shellPart(t, "echo "+portTaken+"; exit 1")
	if p.start(t.Context()) == nil || !p.logged(portTaken) {
		t.Error("the message was not found")
	}
	p.args = func() []string { return []string{"-c", "exit 1"} }
	if p.start(t.Context()) == nil || p.logged(portTaken) {
		t.Error("the message of an earlier start was found")
	}
}

func expectNoDeath(t *testing.T, deaths chan *part) {
	t.Helper()
	time.Sleep(50 * time.Millisecond)
	select {
	case p := <-deaths:
		t.Errorf("a death was reported: %s", p.status().LastExit)
	default:
	}
}
