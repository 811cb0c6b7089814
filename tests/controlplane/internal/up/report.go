package up

import "time"

// Ready is the line that says where everything is.
type Ready struct {
	Ready      bool              `json:"ready"`
	Dir        string            `json:"dir"`
	Kubeconfig string            `json:"kubeconfig"`
	Server     string            `json:"server"`
	CA         string            `json:"ca"`
	Token      string            `json:"token"`
	Audit      string            `json:"audit"`
	Socket     string            `json:"socket"`
	PID        int               `json:"pid"`
	PIDs       map[string]int    `json:"pids"`
	Ports      map[string]int    `json:"ports"`
	Logs       map[string]string `json:"logs"`
	ReadyMS    int64             `json:"ready_ms"`
}

// usage is what a process takes of the machine, as far as the system tells.
type usage struct {
	RSSKB     int64 `json:"rss_kb"`
	PeakRSSKB int64 `json:"peak_rss_kb"`
	CPUMS     int64 `json:"cpu_ms"`
}

// PartStatus is one part in an answer of the control socket.
type PartStatus struct {
	State state `json:"state"`
	// PID is 0 unless a process runs.
	PID  int `json:"pid"`
	Port int `json:"port,omitempty"`
	usage
	UptimeMS int64 `json:"uptime_ms"`
	// ReadyMS is how long the latest start took.
	ReadyMS int64 `json:"ready_ms"`
	Starts  int   `json:"starts"`
	// LastExit says how the process before this one ended.
	LastExit string `json:"last_exit,omitempty"`
	Log      string `json:"log"`
}

// Status is the answer to GET /status.
type Status struct {
	PID      int                   `json:"pid"`
	Dir      string                `json:"dir"`
	Server   string                `json:"server"`
	UptimeMS int64                 `json:"uptime_ms"`
	Self     usage                 `json:"supervisor"`
	Parts    map[string]PartStatus `json:"parts"`
}

func (p *part) status() PartStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	status := PartStatus{
		State: p.state, ReadyMS: p.readyMS, Starts: p.starts, LastExit: p.lastExit, Log: p.layout.log(p.name),
	}
	switch p.state {
	case starting, running, paused:
		status.PID = p.process.pid
		status.usage = measure(p.process.pid)
		status.UptimeMS = time.Since(p.process.started).Milliseconds()
	}
	return status
}
