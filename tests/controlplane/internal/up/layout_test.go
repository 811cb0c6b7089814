package up

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClaimStartsFromNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	l, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(l.etcd(), "old")
	foreign := l.path("foreign")
	for _, path := range []string{old, foreign} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.lock.Close()

	l, err = claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("a file of the earlier run is still there")
	}
	if err := l.remove(); err != nil {
		t.Error(err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 || entries[0].Name() != "foreign" {
		t.Errorf("left after removal: %v", entries)
	}
}

func TestRemoveTakesTheFolderOnlyIfWeMadeIt(t *testing.T) {
	parent := t.TempDir()
	for name, existed := range map[string]bool{"new": false, "old": true} {
		dir := filepath.Join(parent, name)
		if existed {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		l, err := claim(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); (err == nil) != existed {
			t.Errorf("%s: stat after removal: %v", name, err)
		}
	}
}

func TestClaimRefuses(t *testing.T) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	used := t.TempDir()
	if _, err := claim(used); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		foreign: "holds other files (thesis.txt",
		used:    "in use by the control plane of pid",
		filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPath)): "too long for a socket",
	} {
		if _, err := claim(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v instead of %q", dir, err, want)
		}
	}
}

// The sweeper acts when the pipe closes without a word, as when we are killed.
func TestSweeper(t *testing.T) {
	for name, check := range map[string]struct {
		dismissed bool
		left      []string
	}{
		"killed":    {false, nil},
		"dismissed": {true, []string{"dir", "ready"}},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			l, err := claim(filepath.Join(parent, "dir"))
			if err != nil {
				t.Fatal(err)
			}
			readyFile := filepath.Join(parent, "ready")
			if err := os.WriteFile(readyFile, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := startSweeper(l, readyFile)
			if err != nil {
				t.Fatal(err)
			}
			if check.dismissed {
				s.dismiss()
			} else {
				s.tell.Close()
				_ = s.command.Wait()
			}
			var left []string
			entries, _ := os.ReadDir(parent)
			for _, entry := range entries {
				left = append(left, entry.Name())
			}
			if !slices.Equal(left, check.left) {
				t.Errorf("left: %v instead of %v", left, check.left)
			}
		})
	}
}

func TestPortsAreOutsideTheKernelsRange(t *testing.T) {
	var ports ports
	for _, part := range PartNames {
		if err := ports.pick(part); err != nil {
			t.Fatal(err)
		}
		if port := ports.of(part); port < firstPort || port >= ephemeralStart() {
			t.Errorf("the port of %s is %d", part, port)
		}
	}
}

func TestParseConfig(t *testing.T) {
	var stderr strings.Builder
	config, err := ParseConfig([]string{
		"--dir", "/d", "--with-controllers=false", "--timeout=3s", "--rm",
		"--arg", "kube-apiserver=--v=4", "--arg", "kube-apiserver=--profiling=false", "--arg", "etcd=--log-level=debug",
	}, "/bin/controlplane", &stderr)
	if err != nil {
		t.Fatal(err)
	}
	if config.Dir != "/d" || config.Controllers || config.Timeout != 3*time.Second || !config.Remove ||
		!slices.Equal(config.Args["kube-apiserver"], []string{"--v=4", "--profiling=false"}) {
		t.Errorf("config: %+v", config)
	}
	for _, args := range [][]string{{"--arg", "kubelet=--v=4"}, {"--arg", "etcd"}, {"extra"}, {"--kwok", "/no/such/kwok"}, {"--no-such-flag"}} {
		stderr.Reset()
		if _, err := ParseConfig(args, "/bin/controlplane", &stderr); err == nil || stderr.Len() == 0 {
			t.Errorf("%v: error %v, said %q", args, err, stderr.String())
		}
	}
}
