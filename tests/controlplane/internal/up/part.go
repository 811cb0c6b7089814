package up

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// pollInterval is how often a starting part is asked whether it is ready.
const pollInterval = 25 * time.Millisecond

// tailLines is how much of a part's log goes with a report of its death.
const tailLines = 20

// spec says how to run a part and how to tell that it is ready.
type spec struct {
	name    string
	program string
	// args are made anew for each start: ports are known late.
	args func() []string
	// prepare runs before each start.
	prepare func(context.Context) error
	// ready returns nil once the part does its work.
	ready func(context.Context) error
}

type state string

const (
	stopped  state = "stopped" // because it was asked for, or never started
	starting state = "starting"
	running  state = "running" // and ready when last started
	paused   state = "paused"
	failed   state = "failed" // ended although nobody asked for it
)

// part is one part's life.
//
// Invariant: a process that ends is a death to report exactly if the state was
// running or paused; every operation leaves these states before it ends one.
type part struct {
	spec
	launcher launcher
	layout   layout
	timeout  time.Duration
	// died is told of an end that nobody asked for.
	died func(*part)

	operation sync.Mutex // held during a whole start or stop: they never overlap

	mu       sync.Mutex // guards what follows
	state    state
	process  *process
	starts   int
	lastExit string
	readyMS  int64
	logStart int64 // where the log of the latest start begins
}

// start runs the part and returns when it is ready; a part that runs is left so.
func (p *part) start(ctx context.Context) error {
	p.operation.Lock()
	defer p.operation.Unlock()
	if p.is(running, paused) {
		return nil
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	process, err := p.launch(ctx)
	if err != nil {
		p.set(failed)
		return err
	}
	if err := p.waitReady(ctx, process); err != nil {
		process.end(0)
		p.set(failed)
		return fmt.Errorf("failed to start %s: %w%s", p.name, err, p.tail())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = running
	p.readyMS = time.Since(begin).Milliseconds()
	go p.watch(process)
	return nil
}

func (p *part) launch(ctx context.Context) (*process, error) {
	log, err := os.OpenFile(p.layout.log(p.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open the log of %s: %w", p.name, err)
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return nil, fmt.Errorf("failed to open the log of %s: %w", p.name, err)
	}
	if p.prepare != nil {
		if err := p.prepare(ctx); err != nil {
			return nil, fmt.Errorf("failed to prepare %s: %w", p.name, err)
		}
	}
	args := append([]string{p.name}, p.args()...)
	process, err := p.launcher.start(p.program, args, environment(p.layout), p.layout.dir, log)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.process, p.logStart = starting, process, info.Size()
	p.starts++
	return process, nil
}

// waitReady asks until the part is ready, has ended, or has taken too long.
func (p *part) waitReady(ctx context.Context, process *process) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last error
	for {
		select {
		case <-process.done:
			return fmt.Errorf("it ended (%s)", process.exit)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("it was not ready after %s: %w", p.timeout, last)
			}
			return errors.New("interrupted")
		case <-ticker.C:
			if err := p.ready(ctx); err == nil {
				return nil
			} else if ctx.Err() == nil {
				last = err
			}
		}
	}
}

// watch reports the end of a process if it was to run on.
func (p *part) watch(process *process) {
	<-process.done
	p.mu.Lock()
	unexpected := p.process == process && (p.state == running || p.state == paused)
	if unexpected {
		p.state, p.lastExit = failed, process.exit
	}
	p.mu.Unlock()
	if unexpected {
		p.died(p)
	}
}

// stop ends the part, at once if patience is 0. It tells whether it was killed.
func (p *part) stop(patience time.Duration) (killed bool) {
	p.operation.Lock()
	defer p.operation.Unlock()
	p.mu.Lock()
	process, alive := p.process, p.state == running || p.state == paused
	p.state = stopped
	p.mu.Unlock()
	if !alive {
		return false
	}
	killed = process.end(patience)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastExit = process.exit
	return killed
}

// pause freezes the part: its connections stay, but nothing answers on them.
func (p *part) pause() error { return p.shift(running, paused, syscall.SIGSTOP) }

// resume lets a paused part go on.
func (p *part) resume() error { return p.shift(paused, running, syscall.SIGCONT) }

func (p *part) shift(from, to state, signal syscall.Signal) error {
	p.operation.Lock()
	defer p.operation.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case to:
		return nil
	case from:
		p.state = to
		return p.process.signal(signal)
	default:
		return fmt.Errorf("%s is %s, not %s", p.name, p.state, from)
	}
}

func (p *part) is(states ...state) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, state := range states {
		if p.state == state {
			return true
		}
	}
	return false
}

func (p *part) set(state state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

// logged tells whether the latest start wrote text to its log.
func (p *part) logged(text string) bool {
	p.mu.Lock()
	start := p.logStart
	p.mu.Unlock()
	content, _ := os.ReadFile(p.layout.log(p.name))
	return int64(len(content)) >= start && strings.Contains(string(content[start:]), text)
}

// tail is the end of the part's log, as an indented block under a heading.
func (p *part) tail() string {
	file, err := os.Open(p.layout.log(p.name))
	if err != nil {
		return ""
	}
	defer file.Close()
	var lines []string
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		lines = append(lines, "  "+scanner.Text())
		lines = lines[max(0, len(lines)-tailLines):]
	}
	return fmt.Sprintf("\nthe end of %s:\n%s", file.Name(), strings.Join(lines, "\n"))
}

// environment is little on purpose: an ETCD_… or KUBECONFIG of whoever runs us
// must not change what a part does. What tunes Go's runtime passes.
func environment(l layout) []string {
	variables := []string{"HOME=" + l.tmp(), "TMPDIR=" + l.tmp(), "KWOK_WORKDIR=" + l.tmp(), "PATH=" + os.Getenv("PATH")}
	for _, name := range []string{"GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "TZ"} {
		if value, set := os.LookupEnv(name); set {
			variables = append(variables, name+"="+value)
		}
	}
	return variables
}
