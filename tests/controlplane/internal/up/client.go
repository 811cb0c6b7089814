package up

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Verbs are the sub-commands that talk to a running control plane.
var Verbs = []string{"status", "down", "start", "stop", "kill", "restart", "pause", "resume"}

// Control is the command line of one of Verbs; it prints the answer, JSON as the
// socket gave it but indented.
func Control(verb string, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("controlplane "+verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", "", "`folder` of the control plane")
	if err := flags.Parse(args); err != nil {
		return err
	}
	method, path, parts := http.MethodPost, "/"+verb, 1
	switch verb {
	case "status":
		method, parts = http.MethodGet, 0
	case "down":
		parts = 0
	}
	if *dir == "" || flags.NArg() != parts {
		return fmt.Errorf("usage: controlplane %s --dir DIR%s", verb, []string{"", " PART"}[parts])
	}
	if parts == 1 {
		path += "/" + flags.Arg(0)
	}

	socket := SocketPath(*dir)
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequest(method, "http://controlplane"+path, nil)
	if err != nil {
		return fmt.Errorf("failed to make a request: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("no control plane answers in %s: %w", *dir, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("failed to read the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var failure failure
		if json.Unmarshal(body, &failure) != nil || failure.Error == "" {
			failure.Error = string(body)
		}
		return fmt.Errorf("%s", failure.Error)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, body, "", "  "); err != nil {
		return fmt.Errorf("failed to read the answer: %w", err)
	}
	if _, err = indented.WriteTo(stdout); err != nil {
		return fmt.Errorf("failed to write the answer: %w", err)
	}
	if verb == "down" {
		return waitUnlocked(*dir)
	}
	return nil
}
