package up

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is one running program; done closes when it has ended, after which exit
// says how.
type process struct {
	pid     int
	started time.Time
	done    chan struct{}
	exit    string
}

// launcher starts processes from one thread that lives as long as we do: the
// kernel kills a child with us (Pdeathsig) when the thread that started it ends,
// and Go ends threads as it likes unless one is held.
type launcher chan launch

type launch struct {
	command *exec.Cmd
	result  chan error
}

func newLauncher() launcher {
	l := make(launcher)
	go func() {
		runtime.LockOSThread()
		for launch := range l {
			launch.result <- launch.command.Start()
		}
	}()
	return l
}

// start runs program under the name argv[0], with both outputs appended to log.
func (l launcher) start(program string, args, environment []string, dir string, log *os.File) (*process, error) {
	command := &exec.Cmd{
		Path: program, Args: args, Env: environment, Dir: dir,
		Stdout: log, Stderr: log, SysProcAttr: diesWithUs(),
	}
	result := make(chan error)
	l <- launch{command, result}
	if err := <-result; err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", args[0], err)
	}
	p := &process{pid: command.Process.Pid, started: time.Now(), done: make(chan struct{})}
	go func() {
		p.exit = "exit status 0"
		if err := command.Wait(); err != nil {
			p.exit = err.Error()
		}
		close(p.done)
	}()
	return p, nil
}

// signal does nothing to a process that has ended: its pid may be another's now.
func (p *process) signal(signal syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := syscall.Kill(p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("failed to signal pid %d: %w", p.pid, err)
	}
	return nil
}

// end asks the process to end and kills it if it has not after patience. It tells
// whether it had to.
func (p *process) end(patience time.Duration) (killed bool) {
	if patience > 0 {
		// A paused process gets the request only when it goes on.
		_ = p.signal(syscall.SIGTERM)
		_ = p.signal(syscall.SIGCONT)
		select {
		case <-p.done:
			return false
		case <-time.After(patience):
		}
	}
	_ = p.signal(syscall.SIGKILL)
	<-p.done
	return true
}
