package up

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// listen serves the control socket.
func (s *Supervisor) listen(ctx context.Context) (*http.Server, error) {
	listener, err := net.Listen("unix", s.layout.socket())
	if err != nil {
		return nil, fmt.Errorf("failed to make the control socket: %w", err)
	}
	// The folder is ours alone already; this holds if somebody opens it.
	if err := os.Chmod(s.layout.socket(), 0o600); err != nil {
		return nil, fmt.Errorf("failed to protect the control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, s.status())
	})
	mux.HandleFunc("POST /down", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"down": true})
		s.end()
	})
	// Operations belong to ctx, not to the request: a client that goes away in the
	// middle must not leave a part half started.
	for verb, operate := range map[string]func(*part) error{
		"start":  func(p *part) error { return p.start(ctx) },
		"stop":   func(p *part) error { p.stop(patience); return nil },
		"kill":   func(p *part) error { p.stop(0); return nil },
		"pause":  (*part).pause,
		"resume": (*part).resume,
		"restart": func(p *part) error {
			p.stop(patience)
			return p.start(ctx)
		},
	} {
		mux.HandleFunc("POST /"+verb+"/{part}", func(w http.ResponseWriter, r *http.Request) {
			s.operate(w, r.PathValue("part"), operate)
		})
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	return server, nil
}

// operate answers with the part's status when the operation is done.
func (s *Supervisor) operate(w http.ResponseWriter, name string, operate func(*part) error) {
	part := s.part(name)
	if part == nil {
		names := make([]string, 0, len(s.parts))
		for _, part := range s.parts {
			names = append(names, part.name)
		}
		answer(w, http.StatusNotFound, failure{fmt.Sprintf("no part %q here, only %s", name, strings.Join(names, ", "))})
		return
	}
	if err := operate(part); err != nil {
		answer(w, http.StatusInternalServerError, failure{err.Error()})
		return
	}
	answer(w, http.StatusOK, s.status().Parts[name])
}

type failure struct {
	Error string `json:"error"`
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
