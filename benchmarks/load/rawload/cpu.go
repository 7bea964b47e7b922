package main

import (
	"fmt"
	"os"
	"strings"
)

// secondsPerTick is 1/USER_HZ, which Linux fixes at 100 for every architecture we run on.
const secondsPerTick = 0.01

// cpuOf is the user and system CPU time of a process in seconds; 0 when it is gone.
func cpuOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The command's name may hold blanks and brackets: fields are counted from the last bracket, utime is the 14th of all.
	fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
	return ticks(fields[11]) + ticks(fields[12])
}

// cpuOfHost is the CPU time in seconds that all of the machine has spent on anything but idling, steal included.
func cpuOfHost() float64 {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	busy := 0.0
	for i, field := range strings.Fields(line)[1:] {
		if i < 8 && i != 3 && i != 4 { // idle and iowait; guest times behind the 8th are part of user time
			busy += ticks(field)
		}
	}
	return busy
}

func ticks(field string) float64 {
	value := 0.0
	fmt.Sscan(field, &value)
	return value * secondsPerTick
}

// cpuReading is one look at the clocks of named processes, this process and the machine.
type cpuReading struct {
	named     map[string]float64
	own, host float64
}

func readCPU(pids map[string]int) cpuReading {
	reading := cpuReading{named: map[string]float64{}, own: cpuOf(os.Getpid()), host: cpuOfHost()}
	for name, pid := range pids {
		reading.named[name] = cpuOf(pid)
	}
	return reading
}

// since returns what was spent between an earlier reading and this one; strangers' time is what nobody named accounts for.
func (r cpuReading) since(earlier cpuReading) (named map[string]float64, own, strangers float64) {
	named, own = map[string]float64{}, r.own-earlier.own
	strangers = r.host - earlier.host - own
	for name, value := range r.named {
		// A process that ended in between reads 0: its time is lost, and a negative one would be a lie.
		named[name] = max(0, value-earlier.named[name])
		strangers -= named[name]
	}
	return named, own, max(0, strangers)
}
