package up

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ticksPerSecond is the unit of CPU time in /proc on every Linux that Go knows.
const ticksPerSecond = 100

// diesWithUs makes the kernel kill the child when we die, however we die, and
// keeps a ^C in our terminal from reaching it before we can stop it in order.
func diesWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// measure reads the memory and the CPU time of a process, as far as it still runs.
func measure(pid int) (u usage) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		kilobytes, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		switch key {
		case "VmRSS":
			u.RSSKB, _ = strconv.ParseInt(kilobytes, 10, 64)
		case "VmHWM":
			u.PeakRSSKB, _ = strconv.ParseInt(kilobytes, 10, 64)
		}
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name, in brackets, may itself hold spaces and brackets. What follows it
	// starts with the third field; user and system time are the 14th and 15th.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) > 12 {
		user, _ := strconv.ParseInt(fields[11], 10, 64)
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		u.CPUMS = (user + system) * 1000 / ticksPerSecond
	}
	return u
}
