package up

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// The ports that are tried are below those that the kernel hands out to
// connections by itself. A port from its range (what binding to port 0 gives)
// may, while its server is down for a restart, become the local end of somebody's
// connection, even of a client that connects to that very port and so to itself;
// the restarted server could then not bind it.
const (
	firstPort       = 10000
	usualEphemeral  = 32768
	portTries       = 200
	ephemeralSource = "/proc/sys/net/ipv4/ip_local_port_range"
)

// ports remembers the port of each part, which it keeps across restarts.
type ports struct {
	mu     sync.Mutex
	byPart map[string]int
}

// pick gives a part a new port that was free just now.
func (p *ports) pick(part string) error {
	for range portTries {
		port := firstPort + rand.IntN(ephemeralStart()-firstPort)
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		listener.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.byPart == nil {
			p.byPart = map[string]int{}
		}
		p.byPart[part] = port
		return nil
	}
	return fmt.Errorf("no free port found for %s in %d tries", part, portTries)
}

func (p *ports) of(part string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byPart[part]
}

func (p *ports) all() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]int, len(p.byPart))
	for part, port := range p.byPart {
		all[part] = port
	}
	return all
}

func ephemeralStart() int {
	content, err := os.ReadFile(ephemeralSource)
	if err != nil {
		return usualEphemeral
	}
	var first, last int
	// A machine that hands out nearly all ports leaves too few below.
	if _, err := fmt.Sscan(string(content), &first, &last); err != nil || first < firstPort+1000 {
		return usualEphemeral
	}
	return first
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
