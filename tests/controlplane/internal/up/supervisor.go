package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// portTakenTries is how often a part gets other ports because somebody took the
// chosen ones before it could bind them.
const portTakenTries = 5

// portTaken is how the parts, all of them Go programs, say so.
const portTaken = "address already in use"

// Supervisor is one control plane.
type Supervisor struct {
	config Config
	self   string // this program, which is all parts but kwok
	log    io.Writer
	begun  time.Time

	layout layout
	ports  ports
	ca     []byte
	users  map[string]user
	parts  []*part // in the order of their start
	// deaths are the ends that nobody asked for.
	deaths chan *part
	// end asks for the end of everything.
	end context.CancelFunc
}

// errEarly is the end before everything was ready, because somebody asked for it.
var errEarly = errors.New("ended before it was ready")

// Run brings the control plane up, writes the ready line to stdout, waits until
// ctx ends or the socket asks for the end, and takes everything down. An error is
// a part that failed to start, or that died by itself.
func Run(ctx context.Context, config Config, self string, stdout, stderr io.Writer) error {
	layout, err := claim(config.Dir)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	s := &Supervisor{
		config: config, self: self, log: stderr, begun: time.Now(), layout: layout, users: users(),
		deaths: make(chan *part, len(PartNames)), end: end,
	}

	var sweeper *sweeper
	if config.Remove {
		if sweeper, err = startSweeper(layout, config.ReadyFile); err != nil {
			return err
		}
	}
	err = s.serve(ctx, stdout)
	end() // also of starts that somebody asked for over the socket
	s.down()
	// Whoever finds a ready file may trust that something is ready.
	for _, path := range s.readyFiles() {
		_ = os.Remove(path)
	}
	if config.Remove {
		err = errors.Join(err, layout.remove())
		sweeper.dismiss()
	}
	return err
}

func (s *Supervisor) serve(ctx context.Context, stdout io.Writer) error {
	if err := s.prepare(); err != nil {
		return err
	}
	control, err := s.listen(ctx)
	if err != nil {
		return err
	}
	defer hangUp(control)
	if err := s.bringUp(ctx); err != nil {
		return s.whyEnded(ctx, err)
	}
	if err := s.announce(stdout); err != nil {
		return err
	}
	<-ctx.Done()
	return s.whyEnded(ctx, nil)
}

// whyEnded prefers the cause to what followed from it: a death ends the starts of
// other parts, and so does whoever asks for the end.
func (s *Supervisor) whyEnded(ctx context.Context, err error) error {
	select {
	case part := <-s.deaths:
		return fmt.Errorf("%s ended by itself (%s)%s", part.name, part.status().LastExit, part.tail())
	default:
	}
	if err != nil && ctx.Err() != nil {
		return errEarly
	}
	return err
}

// hangUp lets answers go out that are on their way.
func hangUp(control *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if control.Shutdown(ctx) != nil {
		_ = control.Close()
	}
}

// prepare writes every file that does not depend on a port, and lists the parts.
func (s *Supervisor) prepare() (err error) {
	if s.ca, err = makePKI(s.layout); err != nil {
		return err
	}
	files := map[string][]byte{
		"tokens.csv":        tokenFile(s.users),
		"audit-policy.yaml": []byte(auditPolicy),
		"scheduler.yaml":    schedulerConfig(s.layout),
	}
	specs := []spec{s.etcdSpec(), s.apiServerSpec()}
	if s.config.Controllers {
		specs = append(specs, s.controllerManagerSpec(), s.schedulerSpec())
		if s.config.Kwok != "" {
			if files["kwok.yaml"], err = kwokStages(s.config.Kwok); err != nil {
				return err
			}
			specs = append(specs, s.kwokSpec())
		}
	}
	for name, content := range files {
		if err := write(s.layout.conf(name), content); err != nil {
			return err
		}
	}
	launcher := newLauncher()
	for _, spec := range specs {
		own, extra := spec.args, s.config.Args[spec.name]
		spec.args = func() []string { return append(own(), extra...) }
		s.parts = append(s.parts, &part{
			spec: spec, state: stopped, launcher: launcher, layout: s.layout, timeout: s.config.Timeout,
			died: func(p *part) {
				s.deaths <- p
				s.end()
			},
		})
	}
	return nil
}

// bringUp starts etcd, then the API server, then all others at once.
func (s *Supervisor) bringUp(ctx context.Context) error {
	for _, part := range s.parts[:2] {
		if err := s.startFirst(ctx, part); err != nil {
			return err
		}
	}
	if err := write(s.layout.kubeconfig(), kubeconfig(s.server(), s.ca, s.users["admin"])); err != nil {
		return err
	}
	others := s.parts[2:]
	results := make(chan error, len(others))
	for _, part := range others {
		if err := write(s.layout.conf(part.name+".kubeconfig"), kubeconfig(s.server(), s.ca, s.users[part.name])); err != nil {
			return err
		}
	}
	// One that fails ends the starts of the others, which may wait for it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, part := range others {
		go func() { results <- s.startFirst(ctx, part) }()
	}
	var first error
	for range others {
		if err := <-results; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// startFirst starts a part with a port that it keeps from then on.
func (s *Supervisor) startFirst(ctx context.Context, part *part) error {
	for try := 1; ; try++ {
		if part.name != kwok { // which serves nothing
			if err := s.ports.pick(part.name); err != nil {
				return err
			}
		}
		err := part.start(ctx)
		if err == nil {
			s.say("%s is ready after %.1f s", part.name, float64(part.status().ReadyMS)/1000)
			return nil
		}
		if try == portTakenTries || ctx.Err() != nil || !part.logged(portTaken) {
			return err
		}
		s.say("the port of %s was taken, trying another", part.name)
	}
}

// announce says that everything is ready.
func (s *Supervisor) announce(stdout io.Writer) error {
	ready := Ready{
		Ready: true, Dir: s.layout.dir, Kubeconfig: s.layout.kubeconfig(), Server: s.server(),
		CA: s.layout.pki("ca.crt"), Token: s.users["admin"].token, Audit: s.layout.audit(), Socket: s.layout.socket(),
		PID: os.Getpid(), PIDs: map[string]int{}, Ports: s.ports.all(), Logs: map[string]string{},
		ReadyMS: time.Since(s.begun).Milliseconds(),
	}
	for _, part := range s.parts {
		status := part.status()
		ready.PIDs[part.name], ready.Logs[part.name] = status.PID, status.Log
	}
	line, err := json.Marshal(ready)
	if err != nil {
		return fmt.Errorf("failed to encode the ready line: %w", err)
	}
	line = append(line, '\n')
	for _, path := range s.readyFiles() {
		if err := write(path, line); err != nil {
			return err
		}
	}
	if _, err := stdout.Write(line); err != nil {
		return fmt.Errorf("failed to write the ready line: %w", err)
	}
	return nil
}

func (s *Supervisor) readyFiles() []string {
	files := []string{s.layout.readyFile()}
	if s.config.ReadyFile != "" {
		files = append(files, s.config.ReadyFile)
	}
	return files
}

// down kills all parts, the last started first. They need not save anything: the
// next run starts from nothing.
func (s *Supervisor) down() {
	for i := len(s.parts) - 1; i >= 0; i-- {
		s.parts[i].stop(0)
	}
}

func (s *Supervisor) part(name string) *part {
	for _, part := range s.parts {
		if part.name == name {
			return part
		}
	}
	return nil
}

func (s *Supervisor) status() Status {
	status := Status{
		PID: os.Getpid(), Dir: s.layout.dir, Server: s.server(), UptimeMS: time.Since(s.begun).Milliseconds(),
		Self: measure(os.Getpid()), Parts: map[string]PartStatus{},
	}
	for _, part := range s.parts {
		partStatus := part.status()
		partStatus.Port = s.ports.of(part.name)
		status.Parts[part.name] = partStatus
	}
	return status
}

func (s *Supervisor) say(format string, args ...any) {
	fmt.Fprintf(s.log, "controlplane: "+format+"\n", args...)
}
