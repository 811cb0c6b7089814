package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// maxSocketPath is what the kernel takes as a unix socket's address (108 bytes
// with the closing zero); a longer one fails with "invalid argument".
const maxSocketPath = 107

// lockPatience is how long the folder's former user may take to clean up.
const lockPatience = 5 * time.Second

// layout names every file of the folder.
//
// Invariant: everything we make is under one of made, so that removing it cannot
// touch a file that was there before.
type layout struct {
	dir     string
	created bool     // by us, so it goes too
	lock    *os.File // held as long as we, or our sweeper, live
}

func (l layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}

func (l layout) marker() string     { return l.path(".controlplane") }
func (l layout) kubeconfig() string { return l.path("kubeconfig") }
func (l layout) audit() string      { return l.path("audit.log") }
func (l layout) socket() string     { return SocketPath(l.dir) }
func (l layout) readyFile() string  { return l.path("ready.json") }
func (l layout) etcd() string       { return l.path("etcd") }
func (l layout) log(part string) string {
	return l.path("logs", part+".log")
}
func (l layout) pki(name string) string  { return l.path("pki", name) }
func (l layout) conf(name string) string { return l.path("conf", name) }
func (l layout) tmp() string             { return l.path("tmp") }

// SocketPath is the control socket of the control plane in dir.
func SocketPath(dir string) string { return filepath.Join(dir, "ctl.sock") }

// made lists what is removed; the marker is last, since it says the rest is ours.
func (l layout) made() []string {
	return []string{
		l.kubeconfig(), l.audit(), l.socket(), l.readyFile(), l.etcd(),
		l.path("logs"), l.path("pki"), l.path("conf"), l.tmp(), l.marker(),
	}
}

// claim makes dir ours alone and empty of what an earlier run left.
func claim(dir string) (layout, error) {
	l := layout{dir: dir}
	if length := len(l.socket()); length > maxSocketPath {
		return l, fmt.Errorf("%s is too long for a socket in it (%d bytes, at most %d): choose a shorter --dir", dir, length, maxSocketPath)
	}
	_, err := os.Stat(dir)
	l.created = errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return l, fmt.Errorf("failed to make the folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return l, fmt.Errorf("failed to read the folder: %w", err)
	}
	if _, err := os.Stat(l.marker()); err != nil && len(entries) > 0 {
		return l, fmt.Errorf("%s holds other files (%s, …): choose a new or empty --dir", dir, entries[0].Name())
	}
	if l.lock, err = lockFile(l.marker()); err != nil {
		return l, err
	}
	if err := os.Truncate(l.marker(), 0); err != nil {
		return l, fmt.Errorf("failed to write the marker: %w", err)
	}
	fmt.Fprintln(l.lock, os.Getpid())
	made := l.made()
	for _, path := range made[:len(made)-1] {
		if err := os.RemoveAll(path); err != nil {
			return l, fmt.Errorf("failed to clear an earlier run: %w", err)
		}
	}
	for _, path := range []string{l.etcd(), l.path("logs"), l.path("pki"), l.path("conf"), l.tmp()} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return l, fmt.Errorf("failed to make a folder: %w", err)
		}
	}
	return l, nil
}

// lockFile waits for the lock on path. A file that was removed while we waited is
// no lock any more, so the path must still lead to what was locked.
func lockFile(path string) (*os.File, error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(50 * time.Millisecond) {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("failed to open the lock: %w", err)
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			locked, _ := file.Stat()
			current, statErr := os.Stat(path)
			if statErr == nil && os.SameFile(locked, current) {
				return file, nil
			}
		}
		content := make([]byte, 20)
		n, _ := file.ReadAt(content, 0)
		file.Close()
		if time.Now().After(end) {
			holder := "another process"
			if pid, err := strconv.Atoi(string(content[:max(0, n-1)])); err == nil {
				holder = fmt.Sprintf("the control plane of pid %d", pid)
			}
			dir := filepath.Dir(path)
			return nil, fmt.Errorf("%s is in use by %s: end it with `controlplane down --dir %s`, or choose another --dir", dir, holder, dir)
		}
	}
}

// waitUnlocked returns when the control plane in dir has ended and cleaned up.
func waitUnlocked(dir string) error {
	for {
		file, err := os.Open(layout{dir: dir}.marker())
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to open the lock: %w", err)
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		file.Close()
		if err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// remove deletes everything that was made.
func (l layout) remove() error {
	var problems []error
	for _, path := range l.made() {
		problems = append(problems, os.RemoveAll(path))
	}
	if l.created {
		// Files that somebody else put there stay, and so does the folder.
		_ = os.Remove(l.dir)
	}
	return errors.Join(problems...)
}

// write makes a file that only we can read, whole or not at all.
func write(path string, content []byte) error {
	temporary := path + ".part"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return fmt.Errorf("failed to write %s: %w", path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("failed to write %s: %w", path, err)
	}
	return nil
}
