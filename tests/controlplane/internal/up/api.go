package up

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// requestTimeout bounds one question to a part; a part that hangs is not ready.
const requestTimeout = 5 * time.Second

// api asks one server.
type api struct {
	base   string
	token  string
	client *http.Client
}

func newAPI(base string, ca []byte, token string) api {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	// No connection is kept: the server behind the address comes and goes.
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	return api{base, token, &http.Client{Transport: transport, Timeout: requestTimeout}}
}

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	body   string
}

func (e statusError) Error() string {
	return fmt.Sprintf("status %d: %s", e.status, e.body)
}

// call sends body, if any, as JSON and reads the answer into result, if any.
func (a api) call(ctx context.Context, method, path string, body, result any) error {
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return fmt.Errorf("failed to encode a request: %w", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, &content)
	if err != nil {
		return fmt.Errorf("failed to make a request: %w", err)
	}
	request.Header.Set("User-Agent", supervisor)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		request.Header.Set("Authorization", "Bearer "+a.token)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("failed to read the answer: %w", err)
	}
	if response.StatusCode/100 != 2 {
		return statusError{response.StatusCode, string(answer)}
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(answer, result); err != nil {
		return fmt.Errorf("failed to decode the answer: %w", err)
	}
	return nil
}

func (a api) get(ctx context.Context, path string, result any) error {
	return a.call(ctx, http.MethodGet, path, nil, result)
}
