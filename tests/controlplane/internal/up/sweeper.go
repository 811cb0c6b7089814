package up

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// sweeper is a shell that waits for our end and then removes what we made, in
// case we are killed and cannot. It holds the folder's lock, so that nobody uses
// the folder until it is done; it is in a session of its own, so that what kills
// us by group or terminal does not reach it.
type sweeper struct {
	command *exec.Cmd
	// tell is the only writing end of the shell's input: it closes with us.
	tell *os.File
}

// The parts die with us but not before us: a first try may find them writing.
const sweepScript = `read -r word && [ "$word" = dismissed ] && exit 0
created=$1; shift
tries=0
until rm -rf -- "$@" 2>/dev/null; do
	tries=$((tries + 1)); [ $tries -lt 100 ] || exit 1
	sleep 0.1
done
[ -z "$created" ] || rmdir -- "$created" 2>/dev/null`

func startSweeper(l layout, readyFile string) (*sweeper, error) {
	input, tell, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("failed to make a pipe: %w", err)
	}
	defer input.Close()
	created := ""
	if l.created {
		created = l.dir
	}
	args := append([]string{"-c", sweepScript, "controlplane-sweeper", created}, l.made()...)
	if readyFile != "" {
		args = append(args, readyFile)
	}
	command := exec.Command("/bin/sh", args...)
	command.Dir = "/"
	command.Stdin = input
	command.ExtraFiles = []*os.File{l.lock}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("failed to start the sweeper: %w", err)
	}
	return &sweeper{command, tell}, nil
}

// dismiss ends the sweeper: there is nothing left to do.
func (s *sweeper) dismiss() {
	fmt.Fprintln(s.tell, "dismissed")
	s.tell.Close()
	_ = s.command.Wait()
}
